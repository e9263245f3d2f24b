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

from comparing import values
import fuzz_files
import mxkit
from mxkit.errors import CheckpointError, CheckpointWarning, MxkitError
from mxkit.storage.directory import MANIFEST
import mxnet as mx
from mxnet import gluon
from mxnet.gluon import nn
import numpy as np

FAILURES = ("crashed", "hung", "grew", "other error", "read what", "changed")
STEP = 24
WORDS = [None, True, False, 0, -1, 1, 2**31, 2**63, 10**30, 1e308, float("nan"), "", "x", "../x", [], {}, [[]]]
RANDOM = np.random.RandomState(0)
X, Y = RANDOM.randn(80, 5).astype("float32"), RANDOM.randint(0, 3, 80)


def make_net(value=None):
    mxkit.seed_all(3)
    net = nn.HybridSequential()
    net.add(nn.Dense(16, in_units=5, activation="relu"), nn.BatchNorm(in_channels=16), nn.Dense(3, in_units=16))
    mxkit.initialize(net, devices="cpu:2")
    for parameter in net.collect_params().values() if value is not None else ():
        parameter.set_data(mx.nd.full(parameter.shape, value))
    return net


def make_trainer(net):
    return gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.01}, update_on_kvstore=False)


def train(directory, net, trainer, updates, resume):
    """A run of 40 updates with an epoch of 20, which draws nothing."""
    return mxkit.fit(
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


def same(one, other):
    return one.keys() == other.keys() and all(one[name].tobytes() == other[name].tobytes() for name in one)


# damage


def sign(directory, manifest):
    """Write run.json with a digest that fits."""
    manifest.pop("sha256", None)
    rest = json.dumps(manifest)[1:]
    (directory / MANIFEST).write_text(f'{{"sha256": "{hashlib.sha256(rest.encode()).hexdigest()}",\n{rest}')


def count(directory, name, manifest):
    content = (directory / name).read_bytes()
    manifest["files"][name] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def read(directory):
    return json.loads((directory / MANIFEST).read_text())


def bytes_of_a_file(random_, directory):
    """Change one file as fuzz_files does; half of the time its digest is made to fit again."""
    name = random_.choice(sorted(path.name for path in directory.iterdir()))
    path = directory / name
    places, tail = fuzz_files.headers(path) if name != MANIFEST else ([(0, 0, 200)], path.stat().st_size)
    content = fuzz_files.damaged(random_, path.read_bytes(), places, tail)
    manifest = read(directory)
    path.write_bytes(content)
    repaired = random_.random() < 0.5
    if repaired and name != MANIFEST:
        count(directory, name, manifest)
        sign(directory, manifest)
    elif repaired:
        rest = content[content.find(b"\n") + 1 :]
        path.write_bytes(b'{"sha256": "%s",\n%s' % (hashlib.sha256(rest).hexdigest().encode(), rest))
    return repaired


def swap(random_, directory):
    """Two files change places, or one comes from another checkpoint."""
    first, second = random_.sample(sorted(directory.iterdir()), 2)
    if random_.random() < 0.5:
        shutil.copy(str(directory.parent / "other" / first.name), str(first))
    else:
        content = first.read_bytes()
        first.write_bytes(second.read_bytes())
        second.write_bytes(content)
    repaired = random_.random() < 0.5 and MANIFEST not in (first.name, second.name)
    if repaired:
        manifest = read(directory)
        for path in (first, second):
            count(directory, path.name, manifest)
        sign(directory, manifest)
    return repaired


def places_in(value):
    """(container, key) of everything inside of a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield value, key
        yield from places_in(inner)


def edit(random_, directory):
    """Change run.json's values; mostly its digest fits again."""
    manifest = read(directory)
    parts = [manifest, manifest["run"], manifest["optimizer"], manifest["run"]["running"]]
    for _ in range(random_.choice([1, 1, 1, 2, 5])):
        part = random_.choice(parts)
        places = list(places_in(part))
        if not places:
            continue
        container, key = random_.choice(places)
        how = random_.random()
        if how < 0.2:
            del container[key]
        elif how < 0.6 or not isinstance(container[key], (int, float)):
            container[key] = random_.choice(WORDS)
        else:
            container[key] += random_.choice([1, -1, 0.5, 1e6])
    if random_.random() < 0.1:
        (directory / MANIFEST).write_text(json.dumps(manifest, indent=1))
        return False
    sign(directory, manifest)
    return True


def arrays(random_, directory):
    """Write sound arrays of other names, shapes or dtypes, with digests that fit."""
    manifest = read(directory)
    name = random_.choice(sorted(manifest["files"]))
    held = mx.nd.load(str(directory / name))
    chosen = random_.choice(sorted(held))
    how = random_.choice(["name", "shape", "dtype", "value", "gone", "more", "sparse"])
    array = held.pop(chosen)
    if how == "name":
        held[chosen + random_.choice(["x", "@1", ":0", "@99999999999999999999", "@-1"])] = array
    elif how == "shape":
        held[chosen] = mx.nd.concat(array, array, dim=0)
    elif how == "dtype":
        held[chosen] = array.astype(random_.choice(["float64", "float16", "int32"]))
    elif how == "value":
        held[chosen] = array * 2 + 1
    elif how == "sparse" and array.ndim == 2:
        held[chosen] = array.tostype(random_.choice(["csr", "row_sparse"]))
    elif how == "more":
        held.update({chosen: array, f"replica:{chosen}@1": array, "replica:@": array, "more": array})
    mx.nd.save(str(directory / name), held)
    count(directory, name, manifest)
    sign(directory, manifest)
    return True


DAMAGES = [bytes_of_a_file] * 7 + [edit] * 8 + [arrays] * 4 + [swap] * 2


# judgement


def stored(directory):
    """What the files say, if MXNet itself reads them; only asked where `load_checkpoint` did."""
    return {name: array.asnumpy() for name, array in mx.nd.load(str(directory / "net.params")).items()}


def load(directory, repaired, original):
    net = make_net(7)
    trainer = make_trainer(net)
    before = values(net)
    try:
        found = mxkit.load_checkpoint(directory, net, trainer)
    except MxkitError:
        return "refused" if same(values(net), before) else "changed the net and refused it"
    loaded = values(net)
    said = stored(directory)
    if any(loaded[f"{path}@0"].tobytes() != array.tobytes() for path, array in said.items()):
        return "read what the file does not say"
    if not repaired and (not same(loaded, original) or found.step != STEP):
        return "read what was not stored"
    return "loaded as stored" if same(loaded, original) else "loaded as the signed files say"


def go_on(directory, repaired, whole):
    net = make_net(7)
    trainer = make_trainer(net)
    before = values(net)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CheckpointWarning)
            train(directory.parent, net, trainer, 40, True)
    except CheckpointError:
        return "refused" if same(values(net), before) or repaired else "changed the net and refused it"
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
        return "signed, and told by another part of fit" if repaired else f"other error: {told}"[:300]
    if same(values(net), whole):
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
    net = make_net()
    train(folder / "made", net, make_trainer(net), STEP, False)
    sound = folder / "made" / f"step-{STEP:08d}"
    fresh = make_net()
    mxkit.load_checkpoint(sound, fresh)
    original = values(fresh)
    shutil.copytree(str(folder / "made"), str(folder / "whole"))
    net = make_net()
    train(folder / "whole", net, make_trainer(net), 40, True)
    whole = values(net)
    other = make_net(5)
    train(folder / "others", other, make_trainer(other), 23, False)

    def one(random_):
        shutil.rmtree(str(folder / "run"), ignore_errors=True)
        directory = folder / "run" / sound.name
        shutil.copytree(str(sound), str(directory))
        shutil.copytree(str(folder / "others" / "step-00000023"), str(folder / "run" / "other"))
        how = random_.choice(DAMAGES)
        repaired = how(random_, directory)
        size = sum(path.stat().st_size for path in (folder / "run").glob("step-*/*") if path.exists())
        mode = random_.choice([load, load, go_on])
        result, cost = fuzz_files.grown(judge, directory, repaired, mode, original if mode is load else whole)
        return f"{how.__name__}, {mode.__name__}", f"grew by {cost >> 20} MB" if cost > 4 * size + 2**26 else result

    return one


def run(count, seed):
    """Load `count` damaged directories; as `fuzz_files.run`."""
    return fuzz_files.run(count, seed, __file__, FAILURES)


if __name__ == "__main__":
    sys.exit(fuzz_files.main(__doc__, work, run))
