"""The thread that writes beside the training: its errors come out once, and an interrupted wait loses nothing."""

import threading

from mxkit.storage import directory as module
from mxkit.storage.directory import BackgroundWriter
import pytest


def test_an_error_comes_out_once():
    writer = BackgroundWriter()
    writer.wait()
    assert not writer.finished
    writer.start(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        writer.wait()
    writer.wait()
    assert not writer.busy
    assert not writer.finished


def test_a_wait_that_ctrl_c_ends_keeps_the_job(monkeypatch):
    def interrupted(jobs):
        raise KeyboardInterrupt

    released, writer = threading.Event(), BackgroundWriter()
    writer.start(lambda: released.wait(60) and 1 / 0)
    with monkeypatch.context() as patched:
        patched.setattr(module, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            writer.wait()
    assert writer.busy
    assert not writer.finished
    released.set()
    with pytest.raises(ZeroDivisionError):
        writer.wait()
