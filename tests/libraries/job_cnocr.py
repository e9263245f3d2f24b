"""Reads a line of text and a page of two by a net with random weights: the trained ones would be downloaded.

用随机权重的网络识别一行和一页两行的文字；训练好的权重需要下载。
"""

import pathlib
import tempfile

from cnocr import CnOcr
from cnocr.consts import MODEL_VERSION
from cnocr.hyperparams.cn_hyperparams import CnHyperparams
from cnocr.symbols.crnn import gen_network
import mxnet as mx
import numpy as np

name = "densenet-lite-fc"
options = CnHyperparams()
options._loss_type = None
symbol, options = gen_network(name, options)
module = mx.mod.Module(symbol, label_names=None)
module.bind([("data", (options.batch_size, 1, options.img_height, options.img_width))], for_training=False)
module.init_params(mx.init.Xavier())
with tempfile.TemporaryDirectory() as folder:
    files = pathlib.Path(folder, MODEL_VERSION, name)
    files.mkdir(parents=True)
    module.save_checkpoint(str(files / f"cnocr-v{MODEL_VERSION}-{name}"), 40)
    letters = "\n".join(chr(0x4E00 + k) for k in range(options.num_classes - 1))
    (files / "label_cn.txt").write_text(letters, encoding="utf-8")
    reader = CnOcr(name, root=folder, name="reader")
    image = np.full((80, 200, 3), 255, "uint8")
    image[10:30, 10:180:9] = image[50:70, 10:150:9] = 0
    lines = reader.ocr(image)
    print(len(lines), len(reader.ocr_for_single_line(image[:40])))
