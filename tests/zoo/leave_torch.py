"""Converts the nets of MXNet's zoo to PyTorch and compares every step of both, at batch 1 and 4.

Run it with `PYTHONPATH=. python tests/zoo/leave_torch.py [NAMES] [--train]` in an environment with torch: about half
an hour. Prints a line for each net, and ends with an error if one of them is above 1e-4.
"""

import argparse
import subprocess
import sys
import time

from mxkit.errors import ExportError
from mxkit.export.proof import Proof
from mxkit.export.to_torch.code import torch_files
from mxkit.export.to_torch.torch_proof import compare_torch
from mxkit.models.zoo import get_model
from mxkit.nets.architecture.zoos import zoo_names
import mxnet as mx
import numpy as np

TOLERANCE = 1e-4
SECONDS = 900


def side_of(name):
    """A small side of an image on which every layer of a net has something to do."""
    if "inception" in name:
        return 299
    return 224 if name.startswith(("densenet", "squeezenet", "alexnet")) else 64


def convert(name, train):
    """Convert a net and compare it; says what was found, and whether all is within the tolerance."""
    net = get_model(f"zoo:{name}", classes=7)
    net.initialize(mx.init.Xavier(magnitude=2))
    side = side_of(name)
    random = np.random.RandomState(0)
    try:
        text, arrays, source = torch_files(net, {"data": random.uniform(-1, 1, (2, 3, side, side)).astype("f")})
    except ExportError as error:
        return str(error), False
    batches = [[random.uniform(-1, 1, (size, 3, side, side)).astype("f")] for size in (1, 4)]
    rows = compare_torch(source, text, arrays, batches)
    rows += compare_torch(source, text, arrays, [[batches[1][0][:2]]], train=True) if train else []
    proof = Proof(rows, TOLERANCE, {})
    lines = len(text.splitlines())
    failed = "".join(f"\n  {row}" for row in proof.failures[:3])
    return f"{lines} lines, {len(arrays)} arrays; {proof.summary()}{failed}", not proof.failures


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="nets of MXNet's zoo; none are all")
    parser.add_argument("--train", action="store_true", help="compare gradients, too")
    arguments = parser.parse_args()
    failed = []
    names = arguments.names or zoo_names("zoo")
    for name in names if len(names) > 1 else ():  # each in a process of its own, which gives its memory back
        command = [sys.executable, __file__, name, *(["--train"] * arguments.train)]
        failed += [name] * bool(subprocess.run(command, check=False, timeout=SECONDS).returncode)
    for name in names if len(names) == 1 else ():
        started = time.monotonic()
        text, is_right = convert(name, arguments.train)
        failed += [name] * (not is_right)
        sys.stdout.write(f"{name}: {text} ({time.monotonic() - started:.1f} s)\n")
        sys.stdout.flush()
    sys.exit(f"not converted: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
