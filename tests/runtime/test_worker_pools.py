"""The end of Gluon's DataLoader with processes, whatever its workers do (T234), and boxes of several images (T233)."""

import pytest
from sharing import long

# Alarms end it: what these tests guard against is a wait without end.
SCRIPT = """
import gc, os, signal, sys, time, warnings
import mxkit
import mxnet as mx, numpy as np
from mxnet.gluon.data import DataLoader

warnings.simplefilter("error")  # T235: a warning of a fork would be printed

class Numbers:
    def __len__(self):
        return 60
    def __getitem__(self, i):
        if how == "error" and i == 31:
            raise RuntimeError("bad sample")
        return np.full((3, 8, 8), i, "float32"), i

def end(k):
    loader = DataLoader(Numbers(), 4, num_workers=2 + k % 2)
    batches = iter(loader)
    for _ in range(k % 5):
        next(batches)
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

how = sys.argv[1]
for k in range(int(sys.argv[2])):
    signal.alarm(30)
    end(k)
signal.alarm(0)
print("done")
"""


ENDS = ("leave", "error", "kill", "kill and leave")


@pytest.mark.parametrize(("how", "times"), [*((how, 3) for how in ENDS), *(long(how, 50) for how in ENDS)])
def test_a_loader_ends_soon(fork_python, how, times):
    """T234."""
    done = fork_python(SCRIPT, how, str(times))
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
