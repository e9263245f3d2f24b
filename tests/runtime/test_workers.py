"""Processes of a DataLoader, under each way to start them (T91). Without the repair two of them hang for ever."""

import pytest
from sharing import long

SCRIPT = """import sys

class Doubled:
    def __init__(self, np):
        self.values = np.arange(6, dtype="float32")
    def __len__(self):
        return 6
    def __getitem__(self, i):
        import mxnet as mx, numpy as np
        # fails in a worker without mxkit's repairs: T86 and T88
        return np.asarray(mx.nd.full((np.int64(2), 1), self.values[i] * 2)), i

def main(method):
    import mxkit
    import multiprocessing
    import numpy as np
    from mxnet.gluon.data import DataLoader
    multiprocessing.set_start_method(method)
    batches = list(DataLoader(Doubled(np), 3, num_workers=int(sys.argv[2])))
    assert [y.asnumpy().tolist() for _, y in batches] == [[0, 1, 2], [3, 4, 5]]
    assert [x.asnumpy().ravel().tolist() for x, _ in batches] == [[0, 0, 2, 2, 4, 4], [6, 6, 8, 8, 10, 10]]

# The main module imports nothing by itself, so a worker has only what it unpickles.
if __name__ == "__main__":
    main(sys.argv[1])
    print("done")
"""


@pytest.mark.parametrize(("method", "workers"), [("fork", 2), ("spawn", 1), long("forkserver", 1)])
def test_a_loader_with_processes_gives_its_batches(fork_python, method, workers):
    assert fork_python(SCRIPT, method, str(workers)).stdout == "done\n"
