"""Helpers for tests of several rooms."""

from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib.util import find_spec
import io
import os
import time
from typing import NamedTuple

from mxkit.runtime.machine import processor_flags
import pytest

LONG = os.environ.get("MXKIT_LONG") == "1"  # `make long`
ONE_OF_EACH = os.environ.get("MXKIT_ONE_OF_EACH") == "1"  # the oldest end of the matrix in `.ci/run`


needs_onnx = pytest.mark.skipif(
    find_spec("onnxruntime") is None, reason="mxkit[onnx] is not installed: its wheels need NumPy 1.22"
)

needs_fastapi = pytest.mark.skipif(
    find_spec("fastapi") is None or find_spec("uvicorn") is None, reason="mxkit[serve] is not installed"
)

BFLOAT16 = not processor_flags() or "avx512bw" in processor_flags()
needs_bfloat16 = pytest.mark.skipif(not BFLOAT16, reason="the processor has no AVX-512 (T285)")

needs_datasets = pytest.mark.skipif(
    find_spec("datasets") is None or find_spec("webdataset") is None, reason="datasets or webdataset is not installed"
)


def needs(package):
    """Skip a test without the package of an extra."""
    return pytest.mark.skipif(find_spec(package) is None, reason=f"{package} is not installed")


def examples(number):
    """How many examples of hypothesis: `number` in `make long`, a quarter in `make test`, fewer with another Python."""
    return number if LONG else max(number // (16 if ONE_OF_EACH else 4), 4)


def long(*values, **arguments):
    """One more set of `parametrize`, in `.ci/run` only."""
    return pytest.param(*values, marks=pytest.mark.long, **arguments)


def pairs(many, few):
    """Every pair of two independent parameters, of which `make test` takes one for each of `many`."""
    return [
        (one, other) if i % len(few) == j else long(one, other)
        for i, one in enumerate(many)
        for j, other in enumerate(few)
    ]


class Kind(NamedTuple):
    """A kind of MXNet's arrays: `mx.nd`, or `mx.np` if `numpy`."""

    numpy: bool

    def switches(self):
        """`npx.set_np()` or `npx.reset_np()` inside `with`."""
        from mxkit.core.arrays import switches

        return switches(self.numpy)

    def of(self, values):
        """Arrays of this kind from NDArrays, NumPy, numbers and symbols, in lists and tuples."""
        from mxkit.core.arrays import of_kind
        import mxnet as mx
        import numpy as np

        if isinstance(values, (list, tuple)):
            return type(values)(map(self.of, values))
        if not isinstance(values, (mx.nd.NDArray, mx.sym.Symbol)):
            values = np.asarray(values)
            values = mx.nd.array(values, dtype="float32" if values.dtype == "float64" else values.dtype)
        return of_kind(values, self.numpy)

    def net(self, make):
        """The net of `make()`, of this kind, with the values that the net of `mx.nd` has."""
        from mxkit.core.arrays import switches
        from mxkit.core.blocks import parameters_by_path

        with switches(False):
            source = make()
        if not self.numpy:
            return source
        with switches(True):
            net = make()
        values = parameters_by_path(source)
        for path, parameter in parameters_by_path(net).items():
            if values[path]._data is not None:
                for array, value in zip(parameter.list_data(), values[path].list_data()):
                    value.copyto(array.as_nd_ndarray())
        return net

    def holds(self, array):
        """Whether an array is of this kind."""
        import mxnet as mx

        return isinstance(array, mx.np.ndarray) == self.numpy


def command(*arguments):
    """Run the `mxkit` command in this process: exit code, standard output, standard error."""
    from mxkit.cli import main

    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as caught:
        main([str(argument) for argument in arguments])
    return caught.value.code or 0, out.getvalue(), err.getvalue()


def wait_until(true, seconds=60):
    """Look every few milliseconds until a function gives something, which is returned, or the time is over."""
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.005)  # another process is at work
    return true()


def text_of(error, function, *arguments, **named):
    """The text of the error that a call raises."""
    with pytest.raises(error) as caught:
        function(*arguments, **named)
    return str(caught.value)


@contextmanager
def no_curves():
    """Runs draw no curves.png: the picture takes twice as long as a small training."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mxkit.training.history.History.plot", lambda *arguments: None)
        yield


def draw_images(folder, count, seed=0):
    """Draw PNG files of several sizes below two folders of classes; their paths, in the order of names."""
    import numpy as np
    from PIL import Image

    random, paths = np.random.RandomState(seed), []
    for number in range(count):
        path = folder / ("day", "night")[number % 2] / f"{number:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = random.randint(0, 256, (24 + number % 7, 30, 3)).astype("uint8")
        Image.fromarray(pixels).save(str(path))
        paths.append(str(path))
    return sorted(paths)


def image_run(home, **changes):
    """The folder of a short run on drawn images of two classes; `changes` are keys of its recipe."""
    from mxkit.recipe.run import run_recipe

    draw_images(home / "photos", 40)
    steps = [{"name": "resize", "size": 24}, {"name": "center_crop", "size": 20}, "to_tensor"]
    data = {"name": "image_folder", "root": str(home / "photos"), "test": 0.3, "batch_size": 8}
    recipe = {"name": "images", "data": {**data, "eval_augment": steps}, "model": {"name": "lenet", "classes": 2}}
    recipe.update(loss="softmax_ce", optimizer={"name": "adam", "learning_rate": 0.01}, updates=6)
    recipe.update(changes)
    with no_curves():
        return run_recipe(recipe, output=home / "runs", progress=False).folder
