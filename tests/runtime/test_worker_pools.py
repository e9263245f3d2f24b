"""Gluon's DataLoader with processes, however they are started (T91), and its end, whatever they do (T234); boxes of
several images (T233).
"""

import pytest
from sharing import long

# Alarms end it: these tests guard against waits without end. A worker that is not forked has what it unpickles.
SCRIPT = """
import gc, multiprocessing, os, signal, sys, time, warnings
import mxkit
import mxnet as mx, numpy as np
from mxnet.gluon.data import DataLoader

warnings.simplefilter("error")  # T235: a warning of a fork would be printed

class Numbers:
    def __init__(self, how):
        self.how = how
    def __len__(self):
        return 60
    def __getitem__(self, i):
        if self.how == "error" and i == 31:
            raise RuntimeError("bad sample")
        # fails in a worker without mxkit's repairs: T86 and T88
        return np.asarray(mx.nd.full((np.int64(3), 8, 8), np.float32(i))), i

def end(how, k, forked):
    loader = DataLoader(Numbers(how), 4, num_workers=2 + k % 2 if forked else 1)
    batches = iter(loader)
    for number in range(k % 5):
        x, y = next(batches)
        assert y.asnumpy().tolist() == x.asnumpy()[:, 2, 7, 7].tolist() == list(range(4 * number, 4 * number + 4))
    if how in ("kill", "kill and leave"):
        time.sleep(0.02 * (k % 3))
        os.kill(loader._worker_pool._pool[0].pid, signal.SIGKILL)
    if how in ("kill", "error"):
        try:
            for batch in batches:
                pass
        except mxkit.errors.DataError as error:
            assert how == "kill" and "was killed by SIGKILL" in str(error), error
        except RuntimeError as error:
            assert how == "error" and "bad sample" in str(error), error
        else:
            assert how == "kill"  # the worker had nothing to read any more
    del loader, batches
    gc.collect()

if __name__ == "__main__":
    how, times, method = sys.argv[1:]
    multiprocessing.set_start_method(method)
    for k in range(1, int(times) + 1):
        signal.alarm(30 if method == "fork" else 120)
        end(how, k, method == "fork")
    signal.alarm(0)
    print("done")
"""
WAYS = ("leave", "error", "kill", "kill and leave")


@pytest.mark.parametrize(
    ("how", "times", "method"),
    [
        *((how, 3, "fork") for how in WAYS),
        *(long(how, 50, "fork") for how in WAYS),
        ("leave", 1, "spawn"),
        long("leave", 1, "forkserver"),
    ],
)
def test_a_loader_gives_its_batches_and_ends_soon(fork_python, how, times, method):
    """T91, T234."""
    done = fork_python(SCRIPT, how, str(times), method)
    assert (done.stdout, done.stderr) == ("done\n", "")


def test_gluoncv_pads_the_boxes_of_images_that_have_several_numbers_of_them():
    """T233."""
    from gluoncv.data.dataloader import default_mp_pad_batchify_fn, default_pad_batchify_fn
    import numpy as np

    samples = [(np.full((2, 2), i, "float32"), np.full((i + 1, 5), i, "float32")) for i in range(3)]
    for batchify in (default_pad_batchify_fn, default_mp_pad_batchify_fn):
        images, boxes = batchify([(image, box) for image, box in samples])
        # gluoncv pads images, if they are NumPy's, as it pads boxes
        assert images.shape[0] == 3
        assert boxes.shape == (3, 3, 5)
        assert boxes[:, :, 0].asnumpy().tolist() == [[0, -1, -1], [1, 1, -1], [2, 2, 2]]
        assert batchify([boxes for _, boxes in samples[:1] * 2]).shape == (2, 1, 5)
