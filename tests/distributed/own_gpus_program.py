"""A program: what each worker of a machine takes for "auto", where a driver shows five GPUs of which one is too new."""

import io
import logging
import sys

from joint_runs import write
import mxkit
from mxkit.core import device
from mxkit.runtime.gpus import Driver, Gpu
import mxnet as mx

CAPABILITIES = [(8, 0), (9, 0), (8, 0), (8, 0), (8, 0)]


def main(folder):
    gpus = tuple(Gpu(i, "GPU", capability, 2**34, f"GPU-{i}") for i, capability in enumerate(CAPABILITIES))
    mx.context.num_gpus = lambda: len(gpus)
    device.read_driver = lambda: Driver((11, 7), gpus)
    device.has_known_kernels = lambda path: True
    before = device.usable_gpus()
    told = io.StringIO()
    logging.getLogger("mxkit").addHandler(logging.StreamHandler(told))
    mxkit.distributed.initialize()
    found = {"before": before, "auto": device._parse("auto", ""), "gpu": device._parse("gpu", "")}
    found["told"] = told.getvalue()
    found["named"] = device._parse("gpu:0", "")
    write(folder, mxkit.distributed.rank(), {name: str(value) for name, value in found.items()})


if __name__ == "__main__":
    main(*sys.argv[1:])
