"""What people see while `fit` runs: on terminals of any width, in pipes, in notebooks, and when it is stopped."""

from contextlib import contextmanager
import fcntl
import io
import os
from pathlib import Path
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from types import SimpleNamespace
import warnings

import mxkit
from mxkit.training import ledger
from mxkit.training.callbacks import progress as progress_module
from mxkit.training.callbacks.progress import Progress, describe_row
import mxnet as mx
import numpy as np
from oracle import fit, make_batches, make_net
import pytest

BATCHES = make_batches([8] * 10)
ROOT = Path(mxkit.__file__).parents[1]


def run(data=BATCHES, net=None, **changes):
    arguments = {"trainer": ("sgd", {"learning_rate": 0.1}), "epochs": 2, "metrics": ["accuracy"], **changes}
    return fit(net or make_net(), data, **arguments)


def on_update(function):
    return mxkit.callbacks.LambdaCallback(on_update=lambda state, update: function(update))


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Tick(mxkit.Callback):
    """Moves the clock of the progress at each update."""

    def __init__(self, monkeypatch, seconds):
        self.now, self.seconds = 0.0, seconds
        monkeypatch.setattr(progress_module, "time", SimpleNamespace(monotonic=lambda: self.now))

    def on_update(self, state, update):
        self.now += self.seconds


def shown(monkeypatch, seconds=1.0, **arguments):
    """What a terminal gets from a run whose updates take this long."""
    stream = Terminal()
    callbacks = [Tick(monkeypatch, seconds), Progress(stream), *arguments.pop("callbacks", [])]
    run(callbacks=callbacks, **arguments)
    return stream.getvalue()


@contextmanager
def terminal_of(columns):
    """A stream to a real pseudo-terminal, and the list of what came out at its other end."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    found = []

    def read():
        while True:
            try:
                part = os.read(master, 65536)
            except OSError:  # the other end is closed
                return
            found.append(part.decode())

    reader = threading.Thread(target=read)
    reader.start()
    try:
        with os.fdopen(slave, "w", encoding="utf-8") as stream:
            yield stream, found
    finally:
        reader.join()
        os.close(master)


def screen(text):
    """The lines that a terminal shows after all of `text`; the last one is where the cursor stands."""
    lines, row, column = [""], 0, 0
    for piece in re.findall(r"\x1b\[A|[\r\n]|[^\r\n\x1b]+", text):
        if piece == "\r":
            column = 0
        elif piece == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif piece == "\x1b[A":
            row -= 1
        else:
            lines[row] = lines[row][:column].ljust(column) + piece + lines[row][column + len(piece) :]
            column += len(piece)
    return [line.rstrip() for line in lines]


def frames(text):
    """Every picture of the bar, in order."""
    return [piece for piece in re.split(r"[\r\n]+", text) if re.match(r"epoch .* (left|updates, )", piece)]


def test_each_epoch_is_a_bar_that_ends_as_a_line(monkeypatch):
    with terminal_of(80) as (stream, found):
        history = run(valid=BATCHES[:], callbacks=[Tick(monkeypatch, 0.1), Progress(stream)])
    text = "".join(found)
    shown = frames(text)
    assert shown[0].startswith("epoch 1/2 ")
    assert shown[0].endswith(" 0/10, ? left")  # there before the first update, which may take long
    assert {"epoch 1/2", "epoch 2/2"} == {one[:9] for one in shown}
    assert all(len(one) <= 80 for one in shown)
    assert re.fullmatch(
        r"epoch 1/2 [█▏▎▍▌▋▊▉ ]+ 3/10, \S+ left, loss \d\.\d{4}, accuracy \d\.\d{4}, [\d,]+ samples/s", shown[1]
    )
    lines = screen(text)
    assert lines == [f"epoch {row['epoch']}/2  {describe_row(row)}" for row in history] + [""]


def test_the_bar_is_full_and_its_numbers_are_final_while_validation_runs(monkeypatch):
    seen = []
    stream = Terminal()

    class Look(mxkit.Callback):
        def around_validation(self, state):
            seen.append(frames(stream.getvalue())[-1])
            return super().around_validation(state)

    history = run(valid=BATCHES[:], callbacks=[Tick(monkeypatch, 0.0), Progress(stream), Look()])
    for number, (text, row) in enumerate(zip(seen, history), start=1):
        assert text.startswith(f"epoch {number}/2 ########## 10/10, ")
        assert f"loss {row['train_loss']:.4f}, accuracy {row['train_accuracy']:.4f}, " in text


def test_the_loss_is_the_mean_over_samples_so_far(monkeypatch):
    stream, seen = Terminal(), []
    sizes = [4, 1, 5, 2]
    callbacks = [Tick(monkeypatch, 1.0), on_update(seen.append), Progress(stream)]
    run(data=make_batches(sizes), epochs=1, callbacks=callbacks)
    for done, text in enumerate(frames(stream.getvalue())[2:], start=1):  # the newest update may still be on its way
        expected = sum(one.loss * one.samples for one in seen[:done]) / sum(sizes[:done])
        assert f"loss {expected:.4f}" in text


def test_numbers_are_read_at_most_four_times_a_second(monkeypatch):
    reads, waited = [], []
    tick = Tick(monkeypatch, 0.0625)  # sixteen updates a second
    original = ledger.Ledger.settle

    def count(running, but=0, **options):
        if but:  # the progress bar asks
            reads.append(tick.now)
            waited.append(any(not one.settled for one in list(running._pending)[:-but]))
        original(running, but=but, **options)

    monkeypatch.setattr(ledger.Ledger, "settle", count)
    run(data=make_batches([4] * 33), epochs=1, callbacks=[tick, Progress(Terminal())], valid=BATCHES[:])
    assert reads == [*(0.25 * i for i in range(1, 9)), 33 / 16]
    assert not waited[-1]  # at validation all is read already


def test_a_learning_rate_that_changes_is_shown(monkeypatch):
    slower = mxkit.callbacks.LambdaCallback(on_epoch=lambda state, row: state.trainer.set_learning_rate(0.05))
    text = shown(monkeypatch, callbacks=[slower])
    assert not [frame for frame in frames(text) if frame.startswith("epoch 1") and "lr" in frame]
    assert frames(text)[-1].endswith("samples/s, lr 0.05")
    assert screen(text)[-2].endswith("s  lr 0.05")


def test_a_bar_counts_updates_and_has_a_total_if_it_is_known(monkeypatch):
    endless = {"data": lambda: iter(BATCHES)}
    assert frames(shown(monkeypatch, epochs=1, **endless))[-1].startswith("epoch 1/1 10 updates, 00:00, loss ")
    bars = frames(shown(monkeypatch, epochs="14 updates", **endless))
    assert [frame for frame in bars if " 10/14, " in frame and frame.startswith("epoch 1 ")]
    assert " 4/4, " in bars[-1]
    text = shown(monkeypatch, data=make_batches([4] * 7), net=make_net("cpu:2"), accumulate=2, epochs=1)
    assert [re.search(r"(\d)/4, ", frame)[1] for frame in frames(text)] == ["0", "1", "2", "3", "4"]


def test_a_resumed_epoch_begins_where_it_was_left(monkeypatch, tmp_path):
    def stop(update):
        if update.step == 14:
            raise KeyboardInterrupt

    arguments = {"checkpoint": mxkit.Checkpoints(tmp_path, every="1 update"), "seed": 1, "epochs": 2}
    run(callbacks=[on_update(stop)], **arguments)
    text = shown(monkeypatch, resume=True, **arguments)
    assert screen(text)[0] == "resumes in epoch 2/2, after update 13"
    assert " 3/10, " in frames(text)[0]
    ends = [frame for frame in frames(text) if frame.startswith("epoch 2/2") and " 10/10, " in frame]
    # all but the newest update, with those before the stop
    losses = []
    run(seed=1, epochs=2, callbacks=[on_update(lambda update: losses.append(update.loss))])
    assert f"loss {np.mean(losses[10:19]):.4f}" in ends[-1]


# what else is written meanwhile


CHILD = f"""import signal, sys, time, warnings
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
import mxkit
from mxkit.training.callbacks import progress
from oracle import make_batches, make_net
progress.LONG_SECONDS = 0.0
def tell(state, update):
    time.sleep(0.02)
    if update.step == 3: print("half", end=""); print(" and whole")
    if update.step == 5: warnings.warn("careful")
    if update.step == 7: print("to the end", end="")
class Slow(list):
    def __iter__(self):
        for batch in super().__iter__():
            time.sleep(0.3)
            yield batch
def fit(batches, valid=None, **hooks):
    how = dict(loss="softmax_ce", trainer="sgd", epochs=1, callbacks=[mxkit.callbacks.LambdaCallback(**hooks)])
    mxkit.fit(make_net(), batches, valid=valid, **how)
batches = make_batches([8] * 10)
fit(batches, Slow(batches[:3]), on_update=tell, on_epoch=lambda state, row: print("", "epoch told", sep="\\n"))
print("after")
fit(batches * 10000, on_update=lambda state, update: time.sleep(0.02))
print("went on")
"""


def test_prints_and_warnings_appear_above_the_bar_and_ctrl_c_leaves_it():
    with terminal_of(80) as (stream, found):
        variables = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8", "TERM": "xterm"}
        streams = {"stdin": stream, "stdout": stream, "stderr": stream}
        process = subprocess.Popen([sys.executable, "-c", CHILD], env=variables, **streams)
        while process.poll() is None and "left, loss" not in "".join(found).partition("after\r\n")[2]:
            time.sleep(0.01)  # another thread reads the terminal
        process.send_signal(signal.SIGINT)
        status = process.wait(timeout=100)
    text, _, interrupted = "".join(found).partition("after\r\n")
    assert status == 0, text
    lines = screen(text)
    assert lines[0] == "half and whole"
    assert lines[1].endswith("UserWarning: careful")
    assert lines[-4:-2] == ["to the end", "epoch told"]
    assert lines[-2].startswith("epoch 1/1  train_loss ")
    assert [frame for frame in text.split("\r") if re.match(r"valid .* 2/3, \S+ left", frame)]
    assert "valid" not in "".join(line for line in lines if "valid_loss" not in line)
    bar, stopped, *rest = screen(interrupted)
    done = int(re.match(r"epoch 1/1 [^/]* (\d+)/100000, ", bar)[1])
    assert stopped == f"stopped: KeyboardInterrupt in epoch 1, after update {done}"
    assert rest == ["went on", ""]


def test_what_was_replaced_is_back_at_the_end(capsys):
    before, seen = (sys.stdout, warnings.showwarning), []
    run(callbacks=[Progress(Terminal()), on_update(lambda _: seen.append((sys.stdout, warnings.showwarning)))])
    assert all(now is not then for now, then in zip(seen[0], before))
    assert (sys.stdout, warnings.showwarning) == before
    with pytest.raises(LookupError):
        run(callbacks=[Progress(Terminal()), on_update(fails)])
    assert (sys.stdout, warnings.showwarning) == before
    capsys.readouterr()
    end = mxkit.callbacks.LambdaCallback(on_fit_end=lambda *_: sys.stdout.write("no new line"))
    run(callbacks=[end, Progress(Terminal())])
    assert capsys.readouterr().out == "no new line"


def fails(update):
    if update.step == 14:
        raise LookupError("broken")


def test_an_error_leaves_the_bar_as_it_stood_and_the_cursor_on_a_new_line():
    with terminal_of(80) as (stream, found), pytest.raises(LookupError):
        run(callbacks=[Progress(stream), on_update(fails)])
    first, second, last = screen("".join(found))
    assert first.startswith("epoch 1/2  train_loss")
    assert re.match(r"epoch 2/2 [^/]* 4/10, ", second)
    assert last == ""


def test_a_stop_is_explained():
    for stream in (Terminal(), io.StringIO()):
        stop = mxkit.callbacks.LambdaCallback(
            on_update=lambda state, update: state.stop("enough") if update.step == 4 else None
        )
        run(callbacks=[Progress(stream), stop])
        assert screen(stream.getvalue())[-2:] == ["stopped: enough", ""]
        assert len(screen(stream.getvalue())) == 3


def test_no_bar_where_the_terminal_can_do_nothing(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    stream = Terminal()
    run(callbacks=[Progress(stream)])
    assert len(stream.getvalue().splitlines()) == 2
    assert not set("\r\x1b") & set(stream.getvalue())


def test_lines_each_minute_of_a_long_epoch(monkeypatch):
    stream = io.StringIO()
    run(data=make_batches([4] * 15), epochs=1, callbacks=[Tick(monkeypatch, 10), Progress(stream)])
    lines = stream.getvalue().splitlines()
    form = r"epoch 1/1  update {}/15  \d\d:\d\d left  loss \d\.\d{{4}}  accuracy \d\.\d{{4}}  [\d,]+ samples/s"
    assert len(lines) == 3
    assert re.fullmatch(form.format(6), lines[0])
    assert re.fullmatch(form.format(12), lines[1])
    assert lines[2].startswith("epoch 1/1  train_loss")


@pytest.mark.parametrize("progress", [True, "verbose", False])
def test_what_fit_writes_where_there_is_no_terminal(capsys, tmp_path, progress):
    data = mxkit.data.ArrayLoader(np.random.rand(20, 5), np.arange(20) % 3, batch_size=8)
    history = run(data=data, epochs=1, progress=progress, checkpoint=tmp_path / "run", seed=1)
    out, err = capsys.readouterr()
    line = f"epoch 1/1  {describe_row(history[0])}"
    if progress == "verbose":
        run(epochs=1, progress=progress)
        assert "data         list\n" in capsys.readouterr().err
    assert out == ""
    if progress == "verbose":
        assert err.splitlines() == [
            "devices      cpu(0)",
            "threads      1 for an operator on the CPU",
            "parameters   4 parameters, 66 numbers, 264 bytes: 66 trained",
            f"data         {data!r}",
            "training     1 epochs, 3 updates an epoch",
            line,
        ]
    else:
        assert err.splitlines() == ([line] if progress else [])


def test_small_and_large_numbers_keep_their_digits():
    row = {"train_loss": 1.25e-6, "train_a": 0.5, "train_b": 1234567.0, "valid_c": 0.0, "valid_loss": float("nan")}
    text = describe_row({**row, "samples_per_second": 1234.5, "seconds": 2.0})
    assert text == (
        "train_loss 1.25e-06  train_a 0.5000  train_b 1.23e+06  valid_c 0.0000  valid_loss nan  1,234 samples/s  2.0 s"
    )


@pytest.mark.parametrize(("progress", "after"), [(True, 0.0), (True, 1000.0), (False, 0.0)])
def test_evaluate_and_predict_show_a_bar_where_asked_and_long(monkeypatch, progress, after):
    net, stream = make_net(), Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(progress_module, "LONG_SECONDS", after)
    mxkit.evaluate(net, BATCHES, metrics=["accuracy"], limit_batches=4, progress=progress)
    mxkit.predict(net, BATCHES, progress=progress)
    with pytest.raises(mxkit.errors.MxkitError):  # an error takes the bar away, too
        mxkit.evaluate(net, [(mx.nd.ones((2, 9)), mx.nd.ones(2))], metrics=["accuracy"], progress=progress)
    text = stream.getvalue()
    shown = bool(progress and not after)
    for bar in (r"\rdata .* 0/4, \? left", r"\rpredict .* 0/10, \? left", r"\rdata .* 0/1, "):
        assert bool(re.search(bar, text)) == shown
    assert screen(text) == [""]


def test_text_in_a_notebook(monkeypatch):
    kind = type("Cell", (io.StringIO,), {"__module__": "ipykernel.iostream"})
    out, err = kind(), kind()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.setattr(progress_module, "LONG_SECONDS", 0.0)
    run(epochs=1, progress=True, valid=BATCHES[:])
    assert re.search(r"\repoch 1/1 .* 10/10, ", out.getvalue())
    assert "\x1b" not in out.getvalue()
    assert err.getvalue() == ""  # red; and there is no bar below another, because a notebook cannot move up
