"""Long arrays go to the servers in pieces; on one machine only where this test asks for it."""

import subprocess
import sys

WORKER = """
import sys
import mxkit.distributed
from mxkit.distributed.group import current
import mxnet as mx, numpy as np
mxkit.distributed.initialize()
group, rank = current(), mxkit.distributed.rank()
assert group.piece == sys.maxsize
group.piece = 1000
shapes = [(7,), (999,), (50, 20), (1001,), (3, 1111), (2, 2)]
arrays = [[mx.nd.zeros(shape, ctx=mx.cpu(device)) for device in (0, 1)] for shape in shapes]
for update in range(5):
    for number, replicas in enumerate(arrays):
        for device, array in enumerate(replicas):
            array[:] = mx.nd.arange(array.size).reshape(array.shape) + 10 * update + 100 * rank + device
    group.add_up("arrays", arrays)
    for replicas in arrays:
        for array in replicas:
            expected = 4 * np.arange(array.size).reshape(array.shape) + 40 * update + 200 + 2
            assert (array.asnumpy() == expected).all(), (array.shape, update)
print("exact", rank)
"""


def test_pieces_add_up_to_the_whole_on_all_replicas():
    command = [sys.executable, "-m", "mxkit", "launch", "-n", "2", "-s", "2", "--", sys.executable, "-c", WORKER]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
    assert done.returncode == 0, done.stdout
    assert "exact 0" in done.stdout, done.stdout
    assert "[1] exact 1" in done.stdout, done.stdout
