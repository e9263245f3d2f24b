"""How each public name is called: with the arguments of api_arguments.py, and as calls/*.txt says."""

from fnmatch import fnmatchcase
from functools import lru_cache
import inspect
from pathlib import Path

from api_arguments import Eager, Symbolic, generic, made, of_methods
import api_names

#: Operators that generated arguments do not fit: they read files, run code, or change the process.
ONLY_BY_HAND = {
    *("load", "save", "savez", "load_frombuffer", "waitall", "seed", "set_np", "reset_np", "use_np", "from_dlpack"),
    *("to_dlpack_for_read", "to_dlpack_for_write", "Custom", "cond", "foreach", "while_loop", "load_json", "fromjson"),
    *("set_printoptions", "genfromtxt", "imread", "imdecode"),
    # Some generated arguments end the process in C++, whatever the interpreter.
    *("resize", "unravel_index", "tensordot", "lcm", "split", "array_split", "dsplit", "hsplit", "vsplit"),
    "quantize_asym",
    *("reset_arrays", "dgl_csr_neighbor_uniform_sample", "dgl_csr_neighbor_non_uniform_sample", "dgl_subgraph"),
}


#: Namespaces whose functions another one has too.
ALIASES = {"mx.contrib.ndarray": "mx.nd.contrib", "mx.contrib.symbol": "mx.sym.contrib"}


@lru_cache(maxsize=None)
def written():
    """Expressions, or the reason why there is none, of every name in calls/*.txt."""
    found = {}
    for path in sorted(Path(__file__).with_name("calls").glob("*.txt")):
        sections = []
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith("["):
                sections = line.strip("[]").split()
            elif line and not line.startswith("#"):
                name, sign, text = line.split(" ", 2)
                for section in sections:
                    found.setdefault(f"{section}.{name}", []).append((sign, text))
    return found


@lru_cache(maxsize=None)
def shared_names(with_gluoncv):
    """What every expression sees; gluoncv takes a second to import."""
    import logging

    import api_parts
    import api_uses
    import api_uses_arrays
    import mxnet as mx
    import numpy as np

    names = {
        **vars(api_parts),
        **vars(api_uses),
        **vars(api_uses_arrays),
        "mx": mx,
        "np": np,
        "gluon": mx.gluon,
        "nn": mx.gluon.nn,
    }
    if with_gluoncv:
        import api_uses_gluoncv
        import gluoncv

        names.update(vars(api_uses_gluoncv), gluoncv=gluoncv)
    image, real = api_parts.picture(), api_parts.picture(dtype="float32")
    quiet = logging.getLogger("quiet")
    quiet.addHandler(logging.NullHandler())
    quiet.propagate = False
    names.update(
        rnn=mx.gluon.rnn, T=mx.gluon.data.vision.transforms, nd=mx.nd.array, nd_ones=mx.nd.ones, QUIET=quiet,
        SCORES=np.float32([[0.3, 0.7], [0.2, 0.8], [0.6, 0.4]]),
        BOXES01=np.float32([[0, 0.1, 0.2, 0.6, 0.7], [1, 0.3, 0.3, 0.9, 0.8]]),
    )  # fmt: skip
    names["lazy"] = {
        "X": lambda: mx.nd.array(image, dtype="uint8"),
        "BIG": lambda: mx.nd.array(api_parts.picture(48, 64), dtype="uint8"),
        "F": lambda: mx.nd.array(real),
        "CHW": lambda: mx.nd.array(real.transpose((2, 0, 1)).copy()),
    }
    return names


def calls_of(mx, space, name, member):
    """Label and function of each call of a name; a text instead says why there is none."""
    lines = written().get(f"{space}.{name}", ())
    reason = next((text for sign, text in lines if sign == "-"), None) or reason_by_pattern(space, name)
    if reason:
        return reason
    if space in ALIASES:
        return f"built from the same operators as the functions of {ALIASES[space]}"
    calls = [(f"written {number}", _written(mx, space, member, text)) for number, (_, text) in enumerate(lines)]
    if not callable(member):
        return [("value", lambda: member)]
    if space in api_names.ARRAYS:
        return calls + _method_calls(mx, space, name)
    if space.startswith(("mx.nd", "mx.sym", "mx.np")) and not inspect.isclass(member) and name not in ONLY_BY_HAND:
        calls += _generic_calls(mx, space, member)
    return calls or "no call is written"


def reason_by_pattern(space, name):
    """The reason of a line like "*_update - ...", which holds for several names."""
    for full, lines in written().items():
        if "*" in full and fnmatchcase(f"{space}.{name}", full):
            return lines[0][1]
    return None


def _written(mx, space, member, text):
    import numpy as np

    def call(array):
        names = dict(shared_names(space.startswith("gluoncv")))
        names.update(
            {name: make() for name, make in names["lazy"].items()},
            C=member,
            a=_inputs(array),
            array=array,
            v=lambda values, dtype="float32": array(np.asarray(values, dtype), dtype),
        )
        return array.result(eval(text, names))  # noqa: S307

    return _in_mode(mx, space, call)


def _inputs(array):
    """`a(2, 3)` in an expression: an input of that shape, of the section's kind."""
    from api_parts import ramp

    def make(*shape, dtype="float32"):
        return array(ramp(*shape), dtype)

    return make


def _in_mode(mx, space, call):
    """A call under the switches of the namespace, with the inputs of its kind."""
    numpy = ".np" in space

    def run():
        with mx.util.np_shape(numpy), mx.util.np_array(numpy), mx.name.NameManager():
            return call(Symbolic(mx, numpy) if space.startswith("mx.sym") else Eager(mx, numpy))

    return run


def _generic_calls(mx, space, member):
    def run(arguments, named):
        def call(array):
            return array.result(member(*made(arguments, array), **made(named, array)))

        return _in_mode(mx, space, call)

    return [(str(number), run(*one)) for number, one in enumerate(generic())]


def _method_calls(mx, space, name):
    def run(arguments, named):
        def call(array):
            x = array([[1.0, 2.5, 3.0], [4.0, 5.5, 0.5]])
            member = getattr(x, name)
            if not callable(member):
                return array.result(member)
            result = array.result(member(*made(arguments, array), **made(named, array)))
            return [result, array.result(x)]  # some methods change the array

        return _in_mode(mx, space, call)

    return [(str(number), run(*one)) for number, one in enumerate(of_methods())]
