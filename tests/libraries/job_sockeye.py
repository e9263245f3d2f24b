"""Prepares data, trains a small transformer for ten updates, and translates with it, by the library's commands.

用库的命令准备数据，训练一个小的 transformer 十次更新，再用它翻译。
"""

import importlib
import json
import os
import pathlib
import random
import sys
import tempfile


def run(command, words):
    sys.argv = [command, *words.split()]
    importlib.import_module(f"sockeye.{command}").main()


random.seed(0)
translated = dict(zip("eins zwei drei vier fuenf sechs".split(), "one two three four five six".split()))
with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    for part, count in (("train", 200), ("dev", 20)):
        sentences = [random.choices(list(translated), k=random.randint(2, 6)) for _ in range(count)]
        pathlib.Path(f"{part}.de").write_text("".join(" ".join(words) + "\n" for words in sentences))
        pathlib.Path(f"{part}.en").write_text(
            "".join(" ".join(translated[word] for word in words) + "\n" for words in sentences)
        )
    run("prepare_data", "-s train.de -t train.en -o data --max-seq-len 10 --shared-vocab --quiet")
    run(
        "train",
        "-d data -vs dev.de -vt dev.en -o model --shared-vocab --encoder transformer --decoder transformer "
        "--num-layers 1 --transformer-model-size 16 --transformer-attention-heads 2 "
        "--transformer-feed-forward-num-hidden 32 --num-embed 16 --batch-size 64 --batch-type word "
        "--checkpoint-interval 5 --max-updates 10 --use-cpu --decode-and-evaluate 0 --quiet",
    )
    run("translate", "-m model --use-cpu -i dev.de -o out --beam-size 2 --output-type json")
    lines = [json.loads(line) for line in pathlib.Path("out").read_text().splitlines()]
    print(len(lines), sorted(lines[0])[:3])
    os.chdir("/")
