"""What MXNet and GluonCV compute here, a line a probe, to be compared with another Python or NumPy by `diff`.

    python tests/runtime/probes.py > here.txt             MXNet as mxkit mends it
    python tests/runtime/probes.py --plain > plain.txt    MXNet alone; NumPy before 1.24 only

Each group of probes is a process of its own. A line holds the name, a digest of what came out (kind, dtype, shape,
values to four digits) or the error's type, and the warnings that MXNet's or GluonCV's own code raised.
"""

import hashlib
import importlib
import inspect
import subprocess
import sys
import warnings

PLAIN = "--plain" in sys.argv
FULL = "--full" in sys.argv  # a line for each of the arguments that `_call_all` tries
AFTER = "".join(flag.partition("=")[2] for flag in sys.argv if flag.startswith("--after="))
if not PLAIN:
    import mxkit  # noqa: F401

GROUPS = {}
# Functions that read or write files, wait, change the process, or answer with random memory.
NOT_CALLED = {
    "load", "save", "savez", "load_frombuffer", "waitall", "seed", "set_np", "reset_np", "use_np", "from_dlpack",
    "to_dlpack_for_read", "empty", "empty_like", "to_dlpack_for_write", "Custom", "cond", "foreach", "while_loop",
    "imread", "imdecode", "shuffle", "_Null", "genfromtxt", "set_printoptions", "new_empty", "wraps", "test",
    "register", "monkey_patch_np_symbol", "load_json", "fromjson", "dtype", "get_include", "deprecate",
    "_CustomFunction",
}  # fmt: skip


def say(text, end="\n"):
    sys.stdout.write(text + end)
    sys.stdout.flush()


def group(function):
    GROUPS[function.__name__] = function
    return function


def digest(value):
    """Describe a result by its kind, dtype, shape and values, in one short line."""
    text = _text(value).replace("\n", " ")
    return text if len(text) < 90 else f"{text[:60]}... #{hashlib.sha1(text.encode()).hexdigest()[:8]}"


def _text(value):
    import numpy as np

    if isinstance(value, (bool, int, str, bytes, type(None))) and not isinstance(value, np.generic):
        return f"{value!r}"
    if isinstance(value, (list, tuple)):
        return type(value).__name__[:1] + "(" + ", ".join(map(_text, value)) + ")"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_text(item)}" for key, item in value.items()) + "}"
    if hasattr(value, "asnumpy"):
        return f"{type(value).__module__.split('.')[1]}.{type(value).__name__} {_text(value.asnumpy())}"
    if isinstance(value, (np.ndarray, np.generic)):
        kind = "array" if isinstance(value, np.ndarray) else "scalar"
        flat = np.asarray(value).ravel()
        numbers = " ".join(f"{float(x) + 0.0:.4g}" if flat.dtype.kind in "fiub" else str(x) for x in flat)
        return f"{kind} {value.dtype} {value.shape} {numbers}"
    if isinstance(value, np.dtype):
        return f"dtype {value}"
    if isinstance(value, float):
        return f"float {value:.4g}"
    if hasattr(value, "list_arguments"):
        return f"Symbol of {len(value.list_arguments())} arguments"
    return f"<{type(value).__name__}>"


def probe(name, function):
    """Run one probe from the same random state and print its line."""
    global AFTER
    if AFTER:
        AFTER = "" if name == AFTER else AFTER
        return
    import random

    import mxnet as mx
    import numpy as np

    random.seed(1)
    np.random.seed(1)
    mx.random.seed(1)
    say(name, " | ")  # before it runs: where the process ends, `main` goes on after this name
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            text = digest(function())
        except Exception as error:
            text = f"! {type(error).__name__}" + ("" if name.startswith("auto") else f": {str(error)[:150]}")
    own = {f"{w.category.__name__}: {str(w.message)[:60]}" for w in caught if _is_upstream(w.filename)}
    say(" | ".join([text.replace("\n", " "), *sorted(own)]))


def _is_upstream(path):
    return "/mxnet/" in path or "/gluoncv/" in path or "/mxkit/" in path


def _call_all(prefix, space, arguments):
    """Call each function of a namespace with each of the arguments, and print one line a function."""
    for name in sorted(dir(space)):
        function = getattr(space, name, None)
        if name in NOT_CALLED or inspect.isclass(function) or inspect.ismodule(function) or not callable(function):
            continue
        if name.startswith("_") and not name.startswith(("_np", "_random", "_image")):
            continue

        def run(name=name, function=function):
            outcomes = [_outcome(function, one) for one in arguments()]
            if FULL:
                say("".join(f"\nauto.{prefix}.{name}.{number} | {text}" for number, text in enumerate(outcomes)))
            worked = sum(not text.startswith("!") for text in outcomes)
            return f"{worked} of {len(outcomes)} {hashlib.sha1(' ~ '.join(outcomes).encode()).hexdigest()[:8]}"

        probe(f"auto.{prefix}.{name}", run)


def _outcome(function, arguments):
    import mxnet as mx

    args, kwargs = arguments if isinstance(arguments, list) else (arguments, {})
    mx.random.seed(1)
    try:
        return digest(function(*args, **kwargs))
    except Exception as error:
        return f"! {type(error).__name__}"


def _arrays(mx, array):
    import numpy as np

    f = array([[1.0, 2.5, 3.0], [4.0, 5.5, 0.5]])
    s = array([[4.0, 1.0, 0.5], [1.0, 3.0, 0.25], [0.5, 0.25, 2.0]])
    v = array([0.5, 0.25, 0.125])
    i = array([2, 0, 1], dtype="int32")
    return [
        (), (f,), (s,), (v,), (i,), (f, f), (s, s), (v, v), (i, i), (s, v), (v, i), (f, i), (f, 1), (f, 0, 1), (v, 2),
        (f, (1, 0)), (f, (3, 2)), (f, -1), (f, 2.5), (2.5, f), (3,), (2, 5), (0, 1, 5), ((2, 3),), (2.5,), ([v, v],),
        ((v, v), 0), (v, v, v), (s, s, s), (f, np.float32(2)), (np.float64(2), f), (f, np.int64(1)), (np.int64(3),),
        ((np.int64(2), 3),), (f, (np.int64(3), np.int64(2))), (f, f.asnumpy()), (f.asnumpy(),), (f.asnumpy(), f),
        ("ij,jk", s, s), (i, 4), (True, f, f), (f > 1, f, f), (f > 1,), (f > 1, f > 2), (f, [[1, 1], [2, 2]]),
        [(f,), {"axis": 1}], [(f,), {"axis": (0, 1)}], [(f,), {"axis": np.int64(1)}], [(f,), {"dtype": "float64"}],
        [(f,), {"dtype": np.int32}], [(f,), {"dtype": bool}], [((2, 3),), {"dtype": np.float16}],
        [(f,), {"shape": (np.int64(3), 2)}], [(), {"size": (np.int64(2),)}], [(f, 50), {"axis": 0}],
        [(f, 1.5), {"dtype": "float64"}], [(), {"shape": (2, 3)}], [(f, f), {"axis": 1}], [(f,), {"keepdims": True}],
        [(f, i), {"axis": np.int64(1)}], [(f,), {"num_outputs": 3, "axis": 1}], [(f, 2, 3), {"size": (2, 3)}],
    ]  # fmt: skip


def _in_numpy_mode(mx, function):
    with mx.util.np_shape(True), mx.util.np_array(True):
        function()


@group
def mx_np(mx):
    def run():
        arguments = lambda: _arrays(mx, mx.np.array)  # noqa: E731
        for name in ("np", "np.linalg", "np.random", "npx", "npx.random", "npx.image"):
            space = mx
            for part in name.split("."):
                space = getattr(space, part)
            _call_all(name, space, arguments)

    _in_numpy_mode(mx, run)


@group
def mx_np_methods(mx):
    def run():
        x = mx.np.array([[1.0, 2.5, 3.0], [4.0, 5.5, 0.5]])
        for name in sorted(set(dir(type(x))) - set(dir(object))):
            if name in (
                "handle",
                "wait_to_read",
                "__del__",
                "__dict__",
                "__doc__",
                "__weakref__",
                "__array_priority__",
            ):
                continue
            for args in ((), (1,), (x,), (2.5,), ((3, 2),), (0, 1), ("float64",), (x > 2,), (True,), (bool,)):
                probe(
                    f"auto.ndarray.{name}{len(str(args)) if args else ''}",
                    lambda n=name, a=args: _attribute(x.copy(), n, a),
                )

    _in_numpy_mode(mx, run)


def _attribute(x, name, args):
    found = getattr(x, name)
    return found(*args) if callable(found) else found


@group
def numpy_of_mx(mx):
    """NumPy's own functions given MXNet's arrays: `__array_function__` and `__array_ufunc__`."""
    import numpy as np

    def run():
        def arguments():
            x = mx.np.array([[1.0, 2.5, 3.0], [4.0, 5.5, 0.5]])
            s = mx.np.array([[4.0, 1.0], [1.0, 3.0]])
            return (x,), (x, x), (s,), (s, s), (x, 1), ([x, x],), (x, (3, 2)), (x > 1, x, x)

        for space in (np, np.linalg):
            for name in sorted(dir(mx.np if space is np else mx.np.linalg)):
                function = getattr(space, name, None)
                if name in NOT_CALLED or name.startswith("_") or inspect.isclass(function) or not callable(function):
                    continue
                for number in range(8):
                    title = f"auto.dispatch.{space.__name__}.{name}.{number}"
                    probe(title, lambda f=function, n=number: f(*arguments()[n]))

    _in_numpy_mode(mx, run)


@group
def mx_nd(mx):
    arguments = lambda: _arrays(mx, mx.nd.array)  # noqa: E731
    for name in ("nd", "nd.linalg", "nd.random", "nd.contrib", "nd.image", "nd.sparse"):
        space = mx
        for part in name.split("."):
            space = getattr(space, part)
        _call_all(name, space, arguments)


@group
def mx_nd_methods(mx):
    x = mx.nd.array([[1.0, 2.5, 3.0], [4.0, 5.5, 0.5]])
    for name in sorted(set(dir(type(x))) - set(dir(object))):
        if name in ("handle", "wait_to_read", "__del__", "__dict__", "__doc__", "__weakref__", "__array__"):
            continue
        for args in ((), (1,), (x,), (2.5,), ((3, 2),), (0, 1), ("float64",), (True,)):
            probe(
                f"auto.NDArray.{name}{len(str(args)) if args else ''}",
                lambda n=name, a=args: _attribute(x.copy(), n, a),
            )


@group
def mx_sym(mx):
    import numpy as np

    x, y = mx.sym.var("x"), mx.sym.var("y")
    arguments = lambda: [  # noqa: E731
        (x,), (x, y), (x, 1), (x, np.float32(2)), ([x, y],), ((np.int64(2), 3),), [(x,), {"axis": np.int64(1)}],
        [(x,), {"shape": (np.int64(3), 2)}], [(x,), {"dtype": np.float32}], [(x,), {"num_hidden": np.int64(3)}],
        [(x,), {"kernel": (np.int64(3), 3), "num_filter": np.int32(2)}], [(x,), {"scalar": np.float32(0.1)}],
    ]  # fmt: skip
    for name in ("sym", "sym.linalg", "sym.random", "sym.contrib", "sym.image", "sym.sparse"):
        space = mx
        for part in name.split("."):
            space = getattr(space, part)
        _call_all(name, space, arguments)


def _hand_written(mx, *names):
    """Run the functions called `probe_*` of the modules of hand-written probes."""
    from pathlib import Path

    sys.path.insert(0, str(Path(__file__).resolve().parent))
    for name in names:
        module = importlib.import_module(name)
        for attribute, function in sorted(vars(module).items()):
            if attribute.startswith("probe_"):
                probe(f"{name}.{attribute[6:]}", lambda f=function: f(mx))


@group
def parts_of_mxnet(mx):
    _hand_written(mx, "probes_mxnet", "probes_data", "probes_arrays")


@group
def parts_of_gluoncv(mx):
    _hand_written(mx, "probes_gluoncv")


def main():
    asked = [name for name in sys.argv[1:] if not name.startswith("--")]
    if any(flag.startswith("--after=") for flag in sys.argv):
        import mxnet as mx

        GROUPS[asked[0]](mx)
        return
    for name in asked or GROUPS:
        run_group(name)


def run_group(name, after=""):
    """Run a group; where a probe ends the process, say so and go on after it."""
    flags = [flag for flag in sys.argv[1:] if flag.startswith("--")]
    command = [sys.executable, __file__, name, *flags, f"--after={after}"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    say(done.stdout, "")
    died = done.stdout.rpartition("\n")[2].partition(" | ")[0]
    if done.returncode and died and died != after:
        say("! the process ends here")
        run_group(name, died)
    elif done.returncode:
        say(f"== {name} ended with {done.returncode}")


if __name__ == "__main__":
    main()
