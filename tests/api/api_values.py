"""Results as JSON, and their comparison."""

import math
import re

_LARGEST = 64
#: Relative and absolute tolerance by type of number.
TOLERANCES = {"float16": (2e-3, 1e-3), "bfloat16": (2e-2, 1e-2), "float32": (1e-5, 1e-6), "float64": (1e-8, 1e-10)}
_DETAILS = re.compile(r"0x[0-9a-fA-F]+|/tmp/[^'\" ,)]*|(?<=[a-z])\d+_(?=[a-z])")


def described(value, depth=0):
    """A value as JSON: arrays with type, shape and numbers, containers item by item, other objects by their class."""
    import numpy as np

    if depth > 6:
        return "..."
    if value is None or isinstance(value, bool) or type(value) in (int, str):
        return _DETAILS.sub("*", value)[:400] if isinstance(value, str) else value
    if type(value) is float:
        return {"float": _number(value)}
    if isinstance(value, (bytes, bytearray)):
        return {"bytes": len(value), "sum": sum(value)}
    if isinstance(value, type):
        return f"class {value.__name__}"
    if isinstance(value, np.generic):
        return {"scalar": str(value.dtype), "numbers": _numbers(np.asarray(value))}
    if isinstance(value, np.ndarray):
        return _array(value, "numpy", depth)
    if hasattr(value, "asnumpy"):
        return _array(value.asnumpy(), f"{type(value).__module__.split('.')[1]}.{type(value).__name__}", depth)
    if hasattr(value, "_asdict"):
        return {"named": type(value).__name__, "items": [described(item, depth + 1) for item in value]}
    if isinstance(value, (list, tuple)):
        return {type(value).__name__: [described(item, depth + 1) for item in value[:20]], "length": len(value)}
    if isinstance(value, (dict, set, frozenset)):
        items = value.items() if isinstance(value, dict) else enumerate(sorted(value, key=str))
        return {"items": {str(key): described(item, depth + 1) for key, item in list(items)[:40]}}
    if isinstance(value, Exception):
        return {"error": type(value).__name__}
    if isinstance(value, np.dtype):
        return f"dtype {value}"
    return f"<{type(value).__name__}>"


def _array(array, kind, depth):
    if array.dtype == object:
        numbers = [described(item, depth + 1) for item in array.ravel()[:_LARGEST]]
    else:
        numbers = _numbers(array)
    return {"array": kind, "dtype": str(array.dtype), "shape": list(array.shape), "numbers": numbers}


def _numbers(array):
    """Numbers of an array; of a large one evenly spaced ones, and the mean of all."""
    flat = array.ravel()
    if flat.dtype.kind in "SUOVMm":
        return [str(item) for item in flat[:_LARGEST]]
    if flat.dtype.kind == "c":
        flat = flat.view("float64" if flat.dtype.itemsize == 16 else "float32")
    if flat.size > _LARGEST:
        import numpy as np

        few = flat[:: flat.size // _LARGEST + 1]
        return [*map(_number, few.tolist()), _number(float(np.mean(flat, dtype="float64")))]
    return [_number(item) for item in flat.tolist()]


def _number(value):
    if not isinstance(value, float):
        return int(value)
    return float(f"{value:.9g}") if math.isfinite(value) else str(value)


def differences(one, other):
    """How two described results differ, by kind, which is one of error, kind, dtype, shape, length, value, and display
    for texts that differ in how they show a number of NumPy only. Of numbers, the pair that differs most."""
    found, sizes = {}, {}
    for kind, text, size in _differences(one, other, "float32"):
        if kind not in found or size > sizes[kind]:
            found[kind], sizes[kind] = text, size
    return found


def _differences(one, other, dtype):
    if isinstance(one, dict) and isinstance(other, dict):
        yield from _of_mappings(one, other, dtype)
    elif isinstance(one, list) and isinstance(other, list):
        if len(one) != len(other):
            yield "length", f"{len(one)} and {len(other)}", 0
        for a, b in zip(one, other):
            yield from _differences(a, b, dtype)
    elif _is_number(one) and _is_number(other):
        relative, absolute = TOLERANCES.get(dtype, (1e-5, 1e-6) if dtype.startswith("complex") else (0, 0))
        size = abs(one - other) / (max(abs(one), abs(other)) or 1)
        if size and abs(one - other) > absolute + relative * max(abs(one), abs(other)):
            yield "value", f"{one} and {other}", size
    elif type(one) is not type(other) or one != other:
        shown = isinstance(one, str) and isinstance(other, str) and _SCALAR.sub(r"\1", one) == _SCALAR.sub(r"\1", other)
        yield ("display" if shown else "value"), f"{str(one)[:80]} and {str(other)[:80]}", 0


def _of_mappings(one, other, dtype):
    if "error" in one and "error" in other:
        return
    if "error" in one or "error" in other:
        yield "error", f"{one.get('error', 'a result')} and {other.get('error', 'a result')}", 0
    elif set(one) != set(other):
        yield "kind", f"{_kind(one)} and {_kind(other)}", 0
    else:
        dtype = str(one.get("dtype", one.get("scalar", "float64" if "float" in one else dtype)))
        for key in one:
            if key in ("dtype", "scalar", "shape", "array"):
                if one[key] != other[key]:
                    yield {"scalar": "dtype", "array": "kind"}.get(key, key), f"{one[key]} and {other[key]}", 0
                    # Numbers of two types are compared as the rougher one.
                    if dtype in _ROUGH and other[key] in _ROUGH:
                        dtype = min(dtype, other[key], key=_ROUGH.index)
            else:
                yield from _differences(one[key], other[key], dtype)


_ROUGH = ["float16", "float32", "float64"]
_SCALAR = re.compile(r"np\.\w+\(([^()]*)\)")


def _is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _kind(value):
    for key in ("array", "scalar", "named"):
        if key in value:
            return f"{key} {value[key]}"
    return next(iter(value), "nothing")
