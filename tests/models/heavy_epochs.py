"""The large nets of mxkit.models, an epoch of real digits each: `python tests/models/heavy_epochs.py [NAMES]`.

Each at the smallest size that it takes (`usable_sizes`), as `test_nets.py` does with the small ones; then the trained
net is written into one file and exported, and both, read back, give equal outputs. Some minutes and 3 GB of
memory on two cores. Without NAMES, nets that are only deeper than another (`DEEPER`) are left out.
"""

import argparse
from pathlib import Path
import sys
import tempfile
import time

import mxkit
import mxnet as mx
import numpy as np

# Name, arguments, channels, and the smallest size.
LIGHT = [
    ("softmax_regression", {}, 1, 1),
    ("mlp", {"dropout": 0.5}, 1, 1),
    ("lenet", {}, 1, 16),
    ("lenet", {"kernel_sizes": (5, 3), "batch_norm": True}, 1, 12),
    ("lenet5", {}, 1, 12),
    ("lenet5", {"batch_norm": True}, 1, 12),
    ("resnet18", {"small": True}, 3, 1),
]
HEAVY = [
    ("alexnet", {}, 3, 67),
    ("alexnet", {"small": True}, 3, 15),
    *((name, {}, 3, 32) for name in ("vgg11", "vgg13", "vgg16", "vgg19")),
    ("nin", {}, 3, 195),
    ("nin", {"small": True}, 3, 15),
    ("googlenet", {}, 3, 93),
    ("googlenet", {"small": True}, 3, 7),
    ("resnet18", {}, 3, 1),
    ("resnet34", {}, 3, 1),
    ("resnet50", {}, 3, 1),
    ("densenet121", {}, 3, 29),
    ("densenet121", {"small": True}, 3, 8),
]
DEEPER = ("vgg13", "vgg16", "resnet34")
# Of which 320 and batches of 16 leave the loss where it was, or nearly.
SAMPLES = {"lenet5": 1354, "nin": 640, "vgg19": 640, "resnet50": 1354}
BATCHES = {"lenet5": 8, "resnet50": 32}
RATES = {"softmax_regression": 1e-2, "lenet5": 1e-2, "alexnet": 3e-4, "vgg": 1e-4, "nin": 3e-4}


def epoch_of(name, arguments, channels, least):
    """An epoch of a net at its smallest size: the net, and the share of the loss that is left."""
    # the scans have 8 pixels a side, and a single one tells nothing of a digit
    size = least if least > 1 else 8
    mxkit.seed_all(0)
    net = mxkit.models.get_model(name, **arguments)
    # a sigmoid passes on a quarter of what a ReLU does: LeNet-5 would stay on its plateau for more than an epoch
    magnitude = 24 if name == "lenet5" else 2
    mxkit.initialize(net, ("xavier", {"magnitude": magnitude, "factor_type": "in", "rnd_type": "gaussian"}))
    net.hybridize(static_alloc=True)
    x, y = digits_of(size, channels, samples=SAMPLES.get(name, 320))
    rate = next((rate for start, rate in RATES.items() if name.startswith(start)), 1e-3)
    return net, share_left(net, x, y, "softmax_ce", rate, BATCHES.get(name, 16))


def digits_of(size, channels, samples):
    """Digits, normalized and resized; below 8 pixels a side they are averaged."""
    digits = mxkit.data.digits()
    x = mx.nd.array((digits.train.x[:samples] - digits.mean) / digits.std)
    if size < 8:
        x = mx.nd.contrib.AdaptiveAvgPooling2D(x, output_size=size)
    else:
        x = mx.nd.contrib.BilinearResize2D(x, height=size, width=size)
    return x.repeat(channels, axis=1), digits.train.y[:samples]


def share_left(net, x, y, loss, rate, batch_size=16):
    """Mean loss of the last quarter of an epoch, as a share of that of its first three updates."""
    losses = []
    mxkit.fit(
        net,
        mxkit.data.ArrayLoader(x, y, batch_size, shuffle=True, seed=0),
        loss=loss,
        trainer=("adam", {"learning_rate": rate}),
        epochs=1,
        callbacks=[mxkit.callbacks.LambdaCallback(on_update=lambda state, update: losses.append(update.loss))],
        seed=0,
        progress=False,
    )
    assert len(losses) == -(-len(x) // batch_size)
    return np.mean(losses[-len(losses) // 4 :]) / np.mean(losses[:3])


def train(name, arguments, channels, least):
    """Train a net, write it and read it back; the share of the loss that is left, and what is wrong, or nothing."""
    net, left = epoch_of(name, arguments, channels, least)
    smallest = mxkit.models.usable_sizes(mxkit.models.get_model(name, **arguments), channels)[0]
    x, _ = digits_of(least if least > 1 else 8, channels, 8)
    expected = net(x).asnumpy()
    with tempfile.TemporaryDirectory() as folder:
        twin = mxkit.load_net(mxkit.save_net(Path(folder) / "net.mxk", net))
        twin.hybridize()
        mxkit.export(net, Path(folder) / "net", input_shape=x.shape)
        graph = mxkit.load_exported(Path(folder) / "net")
        equal = [np.array_equal(one(x).asnumpy(), expected) for one in (twin, graph)]
    wrong = [text for text, right in zip(("the file differs", "the export differs"), equal) if not right]
    wrong += [f"usable_sizes says {smallest}"] * (smallest != least)
    return left, ", ".join([*wrong, *["it did not learn"] * (not left < 0.9)])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="of nets; the large ones if none is given")
    names = parser.parse_args().names or {one[0] for one in HEAVY}.difference(DEEPER)
    failed = []
    for name, arguments, channels, least in [one for one in LIGHT + HEAVY if one[0] in names]:
        begun = time.monotonic()
        left, wrong = train(name, arguments, channels, least)
        failed += [name] * bool(wrong)
        form = f"{name}({', '.join(f'{key}={value}' for key, value in arguments.items())})"
        sys.stdout.write(
            f"{form}: {wrong or 'learns'}, {left:.2f} of the loss left ({time.monotonic() - begun:.1f} s)\n"
        )
        sys.stdout.flush()
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
