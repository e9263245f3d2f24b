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
    if isinstance(value, type):
        return f"class {value.__name__}"
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


def difference(one, other):
    """How two described results differ, in a word and a short text; None if they are equal."""
    return _differ(one, other, "float32")


def _differ(one, other, dtype):
    if isinstance(one, dict) and isinstance(other, dict):
        if ("array" in one and "scalar" in other) or ("scalar" in one and "array" in other):
            return "kind", f"{_kind(one)} and {_kind(other)}"
        if set(one) != set(other):
            return "kind", f"{_kind(one)} and {_kind(other)}"
        dtype = str(one.get("dtype", one.get("scalar", "float64" if "float" in one else dtype)))
        for key in one:
            found = _differ(one[key], other[key], dtype)
            if found:
                return (key, f"{one[key]} and {other[key]}") if key in ("dtype", "scalar", "shape", "array") else found
        return None
    if isinstance(one, list) and isinstance(other, list):
        if len(one) != len(other):
            return "length", f"{len(one)} and {len(other)}"
        return next(filter(None, (_differ(a, b, dtype) for a, b in zip(one, other))), None)
    if _is_number(one) and _is_number(other):
        relative, absolute = TOLERANCES.get(dtype, (1e-5, 1e-6) if dtype.startswith("complex") else (0, 0))
        if one == other or abs(one - other) <= absolute + relative * max(abs(one), abs(other)):
            return None
        return "value", f"{one} and {other}"
    return None if one == other and type(one) is type(other) else ("value", f"{str(one)[:80]} and {str(other)[:80]}")


def _is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _kind(value):
    for key in ("array", "scalar", "named"):
        if key in value:
            return f"{key} {value[key]}"
    return next(iter(value), "nothing")
