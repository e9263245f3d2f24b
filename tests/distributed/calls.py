"""What two workers call: `python calls.py`, in a job; asserts, and says at its end that all is well."""

import ctypes
import os
from pathlib import Path
import subprocess
import sys
import time

import mxkit
from mxkit import distributed
from mxkit.errors import DistributedError
import mxnet as mx
from mxnet.gluon import nn
import numpy as np
import pytest


def refused(text, call, *arguments):
    with pytest.raises(DistributedError, match=text):
        call(*arguments)


def sums(rank):
    for dtype in ("float32", "float64", "float16", "int32", "int64", "int8", "uint8"):
        for shape in ((), (1,), (3,), (2, 3), (0,), (2, 0)):
            values = (np.arange(int(np.prod(shape)), dtype=dtype).reshape(shape) + rank).astype(dtype)
            wanted = values + (values - rank + (1 - rank)).astype(dtype)
            with mx.util.np_shape(True):
                array = mx.np.array(values, dtype=dtype)
                total = distributed.all_reduce(array)
                assert type(total) is type(array), type(total)
                assert (total.dtype, total.shape) == (np.dtype(dtype), shape), (total.dtype, total.shape)
                np.testing.assert_array_equal(total.asnumpy(), wanted.astype(dtype), err_msg=f"{dtype} {shape}")
                np.testing.assert_array_equal(array.asnumpy(), values)
            if shape and 0 not in shape:
                array = mx.nd.array(values, dtype=dtype)
                total = distributed.all_reduce(array)
                assert type(total) is mx.nd.NDArray
                assert total.dtype == np.dtype(dtype)
                np.testing.assert_array_equal(total.asnumpy(), wanted.astype(dtype))
    for dtype, number in (("uint8", 200), ("int8", 100)):
        with pytest.raises(OverflowError, match=f"does not fit into {dtype}"):
            distributed.all_reduce(mx.nd.array([number], dtype=dtype))
    for other in (np.ones(2), 1.0, mx.nd.ones((2, 2)).tostype("row_sparse")):
        with pytest.raises(TypeError, match="expected a dense NDArray of numbers; received"):
            distributed.all_reduce(other)
    large = mx.nd.array([2**40 + rank], dtype="int64")
    assert distributed.all_reduce(large).asnumpy().tolist() == [2**41 + 1]
    for number in range(3):  # the same shape again
        total = distributed.all_reduce(mx.nd.full((4,), rank + number))
        np.testing.assert_array_equal(total.asnumpy(), np.full(4, 2 * number + 1))


def main():
    assert (distributed.rank(), distributed.size()) == (0, 1)
    distributed.barrier()
    distributed.shutdown()  # nothing, alone
    assert distributed.all_reduce(mx.nd.ones(2)).asnumpy().tolist() == [1, 1]
    assert distributed.initialize()
    assert distributed.initialize()
    rank = distributed.rank()
    assert (rank, distributed.size()) == (int(os.environ["MXKIT_RANK"]), 2)
    sums(rank)

    mxkit.seed_all(rank)
    net = nn.Sequential()
    net.add(nn.Dense(3, in_units=2), nn.BatchNorm(in_channels=3))
    mxkit.initialize(net)
    before = {name: one.data().asnumpy() for name, one in mxkit.parameters(net).items()}
    distributed.broadcast_parameters(net)
    after = {name: one.data().asnumpy() for name, one in mxkit.parameters(net).items()}
    if rank == 0:
        assert all(np.array_equal(before[name], after[name]) for name in before)
    text = "".join(value.tobytes().hex() for value in after.values())
    group = mxkit.distributed.group.current()
    assert group.gather("parameters", text) == [text, text]
    refused("has no values yet", distributed.broadcast_parameters, nn.Dense(1))

    # the servers take no pickles from whoever reaches them
    group._store.set_optimizer(mx.optimizer.SGD(learning_rate=1.0))
    assert distributed.all_reduce(mx.nd.ones(4)).asnumpy().tolist() == [2, 2, 2, 2]

    # a process of a worker that joins again is refused, and the job goes on
    if rank == 1:
        code = "from mxkit import distributed; distributed.initialize()"
        done = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
        assert done.returncode == 1
        assert "have the same rank" in done.stderr, done.stderr
        child = os.fork()
        if not child:
            try:
                refused("this process was forked from worker 1", distributed.barrier)
            finally:
                sys.exit(0)  # runs what `atexit` knows, and disturbs nobody
        os.waitpid(child, 0)
    distributed.barrier("after the children")

    if len(sys.argv) > 1:
        Path(sys.argv[1], str(rank)).touch()
        while not Path(sys.argv[1], "go").exists():
            time.sleep(0.02)
    begun = time.perf_counter()
    for _ in range(200):
        distributed.barrier()
    print(f"a gather takes {(time.perf_counter() - begun) / 200 * 1e3:.3f} ms", flush=True)  # noqa: T201
    if rank == 1:
        distributed.shutdown()
        distributed.shutdown()
        assert (distributed.rank(), distributed.size()) == (0, 1)
        refused("has left its job by shutdown", distributed.initialize)
        time.sleep(2)  # worker 0, and perhaps the servers with it, may have ended
        mx.nd.ones(3).asnumpy()
    ctypes.CDLL(None).puts(b"printed by C, unflushed")
    print(f"worker {rank} is well")  # noqa: T201
    sys.exit(3 + rank)  # with both words unflushed


if __name__ == "__main__":
    main()
