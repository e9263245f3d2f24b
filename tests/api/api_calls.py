"""How each public name is called: with the arguments of arguments.txt, and as calls/*.txt says."""

from fnmatch import fnmatchcase
from functools import lru_cache
import inspect
from pathlib import Path

import api_names

HERE = Path(__file__).parent
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
#: Arrays of arguments.txt.
LETTERS = {
    "f": ([[1.0, 2.5, 3.0], [4.0, 5.5, 0.5]], "float32"),
    "v": ([0.5, 0.25, 0.125], "float32"),
    "i": ([2, 0, 1], "int32"),
    "j": ([3, 1, 2], "int32"),
    "k": ([1, 0], "int32"),
    "s": ([[4.0, 1.0, 0.5], [1.0, 3.0, 0.25], [0.5, 0.25, 2.0]], "float32"),
    "b": ([[True, False, True], [False, True, True]], "bool"),
    "u": ([[7, 200], [3, 255]], "uint8"),
    "h": ([[1.0, 2.5], [0.25, 3.0]], "float16"),
    "d": ([[1.0, 2.5], [0.25, 3.0]], "float64"),
    "m": ([[2.0, 1.0, 0.5], [1.0, 4.0, 3.0]], "float32"),
}


class Eager:
    """Makes arrays of `mx.nd` or `mx.np`."""

    def __init__(self, mx, numpy):
        self._make = (mx.np if numpy else mx.nd).array

    def __call__(self, values, dtype="float32"):
        return self._make(values, dtype=dtype)

    def result(self, value):
        return value


class Symbolic:
    """Makes variables, and keeps the arrays that a graph of them is computed with."""

    def __init__(self, mx, numpy):
        self._mx, self._numpy, self._values = mx, numpy, {}

    def __call__(self, values, dtype="float32"):
        name = f"v{len(self._values)}"
        self._values[name] = self._mx.nd.array(values, dtype=dtype)
        variable = self._mx.sym.var(name)
        return variable.as_np_ndarray() if self._numpy else variable

    def result(self, value):
        """The arrays of a graph; other values as they are."""
        mx = self._mx
        if isinstance(value, (list, tuple)):
            return type(value)(self.result(item) for item in value)
        if not isinstance(value, mx.sym.Symbol):
            return value
        known = {name: self._values[name] for name in value.list_arguments() if name in self._values}
        shapes, _, auxiliary = value.infer_shape(**{name: array.shape for name, array in known.items()})
        arrays = {**known, **self._given(value.list_arguments(), shapes, 0.5)}
        states = self._given(value.list_auxiliary_states(), auxiliary, 1)
        outputs = value.bind(mx.cpu(), arrays, aux_states=states).forward()
        mx.nd.waitall()  # before the shape of outputs is read that depends on numbers
        if self._numpy:
            outputs = [output.as_np_ndarray() for output in outputs]
        return outputs[0] if len(outputs) == 1 else list(outputs)

    def _given(self, names, shapes, number):
        """The arrays of variables, or arrays of one number; none if a shape depends on numbers."""
        named = zip(names, shapes or ())
        return {name: self._values.get(name, self._mx.nd.full(shape, number)) for name, shape in named}


class Letters(dict):
    """Names of an expression: a letter is a new array each time that it is read."""

    def __init__(self, array):
        super().__init__()
        self._array = array

    def __missing__(self, name):
        return self._array(*LETTERS[name])


@lru_cache(maxsize=None)
def arguments():
    """The lines of arguments.txt by section."""
    found = {}
    for line in (HERE / "arguments.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("[") and line[1:-1].isalpha():
            lines = found[line[1:-1]] = []
        elif not line.startswith("#"):
            lines.append(line)
    return found


@lru_cache(maxsize=None)
def written():
    """Expressions, or the reason why there is none, of every name in calls/*.txt."""
    found = {}
    for path in sorted((HERE / "calls").glob("*.txt")):
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
    import api_parts
    import api_uses

    names = {**vars(api_parts), **vars(api_uses)}
    if with_gluoncv:
        import api_uses_gluoncv

        names.update(vars(api_uses_gluoncv))
    return names


def calls_of(mx, space, name, member):
    """Label and function of each call of a name; a text instead says why there is none."""
    lines = written().get(f"{space}.{name}", ())
    reason = next((text for sign, text in lines if sign == "-"), None) or reason_by_pattern(space, name)
    if reason:
        return reason
    if space in ALIASES:
        return f"built from the same operators as the functions of {ALIASES[space]}"
    if not callable(member):
        return [("value", lambda: member)]
    calls = [(f"written {number}", _written(mx, space, member, text)) for number, (_, text) in enumerate(lines)]
    if space in api_names.ARRAYS:
        calls += _generic_calls(mx, space, "methods", lambda array: getattr(array, name))
    elif space.startswith(("mx.nd", "mx.sym", "mx.np")) and not inspect.isclass(member) and name not in ONLY_BY_HAND:
        calls += _generic_calls(mx, space, "functions", lambda array: member)
    return calls or "no call is written"


def reason_by_pattern(space, name):
    """The reason of a line like "*_update - ...", which holds for several names."""
    for full, lines in written().items():
        if "*" in full and fnmatchcase(f"{space}.{name}", full):
            return lines[0][1]
    return None


def _in_mode(mx, space, call):
    """A call under the switches of the namespace, with the inputs of its kind."""
    numpy = ".np" in space

    def run():
        with mx.util.np_shape(numpy), mx.util.np_array(numpy), mx.name.NameManager():
            return call(Symbolic(mx, numpy) if space.startswith("mx.sym") else Eager(mx, numpy))

    return run


def _written(mx, space, member, text):
    def call(array):
        import api_parts

        names = dict(shared_names(space.startswith("gluoncv")))
        names.update(
            {name: mx.nd.array(values, dtype=values.dtype) for name, values in api_parts.IMAGES.items()},
            C=member,
            a=lambda *shape, dtype="float32": array(api_parts.ramp(*shape), dtype),
            array=array,
            v=lambda values, dtype="float32": array(api_parts.np.asarray(values, dtype), dtype),
        )
        return array.result(eval(text, names))  # noqa: S307

    return _in_mode(mx, space, call)


def _generic_calls(mx, space, section, member_of):
    """A call for each line of arguments; of methods also the array, which some change."""
    import numpy as np

    def run(text):
        def call(array):
            x = array(*LETTERS["f"]) if section == "methods" else None
            names = {"np": np, "C": member_of(x), "n": np.array(*LETTERS["f"])}
            if not callable(names["C"]):
                return array.result(names["C"])
            result = array.result(eval(f"C({text})", names, Letters(array)))  # noqa: S307
            return result if x is None else [result, array.result(x)]

        return _in_mode(mx, space, call)

    return [(str(number), run(text)) for number, text in enumerate(arguments()[section])]
