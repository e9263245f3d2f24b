"""Damages checkpoint directories and loads them: `python tests/storage/fuzz_directory.py`.

`load_checkpoint` with a Trainer or `fit(resume=True)` reads each directory. It must refuse it with an MxkitError and
not change the net, or load exactly the content of the files. Only with repaired digests may the result differ from
the stored numbers, or another part of fit, like a callback, raise the error. Exit code 1 if a directory crashed, hung,
cost more than 4 times its size and 64 MB, or was read otherwise. Missing, cut and linked files: test_directory.py.
"""

import hashlib
import json
import shutil
import sys
import warnings

from comparing import X, Y, make_net, values
import fuzz_files
import mxkit
from mxkit.errors import CheckpointError, CheckpointWarning, MxkitError
from mxkit.storage.directory import MANIFEST, sealed_manifest
import mxnet as mx
from mxnet import gluon

FAILURES = ("crashed", "hung", "grew", "other error", "read what", "changed")
STEP = 14
WORDS = [None, True, False, 0, -1, 1, 2**31, 2**63, 10**30, 1e308, float("nan"), "", "x", "../x", [], {}, [[]]]


def made(seed=4):
    net = make_net("cpu:2", norm=True, seed=seed, width=16)
    return net, gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.01}, update_on_kvstore=False)


def train(directory, net, trainer, updates, resume):
    """A run of 20 updates with an epoch of 10, which draws nothing."""
    mxkit.fit(
        net,
        mxkit.data.ArrayLoader(X, Y, 4, shuffle=True, seed=1),
        loss="softmax_ce",
        trainer=trainer,
        epochs=f"{updates} updates",
        metrics=["accuracy", mx.metric.Accuracy(name="mxnets")],
        valid=[(X[:8], Y[:8])],
        callbacks=[
            mxkit.callbacks.EMA(0.9),
            mxkit.callbacks.EarlyStopping("valid_loss", "min", patience=9, restore_best=True),
        ],
        seed=5,
        checkpoint=directory,
        resume=resume,
        progress=False,
    )
    return values(net)


def same(one, other):
    return one.keys() == other.keys() and all(one[name].tobytes() == other[name].tobytes() for name in one)


# damage; each function returns whether the digests fit again


def sign(directory, manifest, *changed):
    """Write run.json with digests that fit."""
    manifest.pop("sha256", None)
    for name in changed:
        content = (directory / name).read_bytes()
        manifest["files"][name] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (directory / MANIFEST).write_bytes(sealed_manifest(manifest))
    return True


def damage_bytes(random_, directory, manifest):
    """Change one file as fuzz_files does."""
    name = random_.choice(sorted(path.name for path in directory.iterdir()))
    path = directory / name
    places, tail = fuzz_files.headers(path) if name != MANIFEST else ([(0, 0, 200)], path.stat().st_size)
    content = fuzz_files.damaged(random_, path.read_bytes(), places, tail)
    path.write_bytes(content)
    if random_.random() < 0.5:
        return False
    if name != MANIFEST:
        return sign(directory, manifest, name)
    rest = content[content.find(b"\n") + 1 :]
    path.write_bytes(b'{"sha256": "%s",\n%s' % (hashlib.sha256(rest).hexdigest().encode(), rest))
    return True


def places_in(value):
    """(container, key) of everything inside of a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield value, key
        yield from places_in(inner)


def damage_values(random_, directory, manifest):
    """Change run.json's values."""
    parts = [manifest, manifest["run"], manifest["optimizer"], manifest["run"]["running"]]
    for _ in range(random_.choice([1, 1, 1, 2, 5])):
        container, key = random_.choice([*places_in(random_.choice(parts))] or [(manifest, "step")])
        how = random_.random()
        if how < 0.2:
            container.pop(key)
        elif how < 0.6 or not isinstance(container[key], (int, float)):
            container[key] = random_.choice(WORDS)
        else:
            container[key] += random_.choice([1, -1, 0.5, 1e6])
    if "files" in manifest and random_.random() < 0.9:
        return sign(directory, manifest)
    (directory / MANIFEST).write_text(json.dumps(manifest, indent=1))
    return False


def damage_arrays(random_, directory, manifest):
    """Write sound arrays of other names, shapes, dtypes or values."""
    name = random_.choice(sorted(manifest["files"]))
    held = mx.nd.load(str(directory / name))
    chosen = random_.choice(sorted(held))
    array = held.pop(chosen)
    suffix = random_.choice(["x", "@1", ":0", "@99999999999999999999", "@-1"])
    changed = [{chosen + suffix: array}, {chosen: mx.nd.concat(array, array, dim=0)}, {chosen: array * 2 + 1}, {}]
    changed += [{chosen: array.astype(random_.choice(["float64", "float16", "int32"]))}]
    changed += [{chosen: array, f"replica:{chosen}@1": array, "replica:@": array, "more": array}]
    changed += [{chosen: array.tostype(random_.choice(["csr", "row_sparse"]))}] if array.ndim == 2 else []
    mx.nd.save(str(directory / name), {**held, **random_.choice(changed)})
    return sign(directory, manifest, name)


DAMAGES = [damage_bytes] * 7 + [damage_values] * 8 + [damage_arrays] * 4


# judgement


def load(directory, repaired, original):
    net, trainer = made()
    before = values(net)
    try:
        found = mxkit.load_checkpoint(directory, net, trainer)
    except MxkitError:
        return "refused" if same(values(net), before) else "changed the net and refused it"
    loaded = values(net)
    said = mx.nd.load(str(directory / "net.params"))
    if any(loaded[f"{path}@0"].tobytes() != array.asnumpy().tobytes() for path, array in said.items()):
        return "read what the file does not say"
    if same(loaded, original):
        return "loaded as stored" if repaired or found.step == STEP else "read what was not stored"
    return "loaded as the signed files say" if repaired else "read what was not stored"


def go_on(directory, repaired, whole):
    net, trainer = made()
    before = values(net)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CheckpointWarning)
            ended = train(directory.parent, net, trainer, 20, True)
    except CheckpointError:
        return "refused" if same(values(net), before) or repaired else "changed the net and refused it"
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
        return "signed, and told by another part of fit" if repaired else f"other error: {told}"[:300]
    if same(ended, whole):
        return "went on as the stopped run"
    return "went on as the signed files say" if repaired else "read what was not stored"


def judge(directory, repaired, mode, expected):
    try:
        return mode(directory, repaired, expected)
    except Exception as error:
        return f"other error: {type(error).__name__}: {error}"[:300]
    finally:
        mx.nd.waitall()


def work(folder):
    """The function that damages and loads one directory."""
    expected = {load: train(folder / "made", *made(3), STEP, False)}
    sound = folder / "made" / f"step-{STEP:08d}"
    shutil.copytree(str(folder / "made"), str(folder / "whole"))
    expected[go_on] = train(folder / "whole", *made(3), 20, True)

    def one(random_):
        shutil.rmtree(str(folder / "run"), ignore_errors=True)
        directory = folder / "run" / sound.name
        shutil.copytree(str(sound), str(directory))
        how = random_.choice(DAMAGES)
        repaired = how(random_, directory, json.loads((directory / MANIFEST).read_text()))
        size = sum(path.stat().st_size for path in (folder / "run").glob("step-*/*") if path.exists())
        mode = random_.choice([load, load, go_on])
        result, cost = fuzz_files.grown(judge, directory, repaired, mode, expected[mode])
        return f"{how.__name__}, {mode.__name__}", f"grew by {cost >> 20} MB" if cost > 4 * size + 2**26 else result

    return one


def run(count, seed):
    """Load `count` damaged directories; as `fuzz_files.run`."""
    return fuzz_files.run(count, seed, __file__, FAILURES)


if __name__ == "__main__":
    sys.exit(fuzz_files.main(__doc__, work, run))
