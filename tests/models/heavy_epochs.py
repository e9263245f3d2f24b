"""The large nets of mxkit.models, an epoch of real digits each: `python tests/models/heavy_epochs.py [NAMES]`.

Each at the smallest size that it takes, as in `test_one_epoch.py`; then the trained net is written into one file and
exported, and both, read back, give equal outputs. Some minutes and 3 GB of memory on two cores.
"""

import argparse
from pathlib import Path
import sys
import tempfile
import time

import mxkit
import numpy as np
from test_nets import SMALLEST
from test_one_epoch import HEAVY, digits_of, epoch_of, share_left


def train(name, arguments, channels, least):
    """Train a net, write it and read it back; the share of the loss that is left, and what is wrong, or nothing."""
    net, losses = epoch_of(name, arguments, channels, least)
    left = share_left(losses)
    x, _ = digits_of(least if least > 1 else 8, channels, 8)
    expected = net(x).asnumpy()
    with tempfile.TemporaryDirectory() as folder:
        twin = mxkit.load_net(mxkit.save_net(Path(folder) / "net.mxk", net))
        twin.hybridize()
        mxkit.export(net, Path(folder) / "net", input_shape=x.shape)
        graph = mxkit.load_exported(Path(folder) / "net")
        equal = [np.array_equal(one(x).asnumpy(), expected) for one in (twin, graph)]
    wrong = [text for text, right in zip(("the file differs", "the export differs"), equal) if not right]
    return left, ", ".join([*wrong, *["it did not learn"] * (not left < 0.9)])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="of nets; none are all large ones, and a small one can be named too")
    names = parser.parse_args().names
    failed = []
    for name, arguments, channels, least in SMALLEST:
        if name not in names if names else (name, arguments) not in HEAVY:
            continue
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
