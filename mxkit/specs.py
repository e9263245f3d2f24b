"""How a loss, an optimizer, a metric or an initializer may be given: by name, or as an object."""

from typing import Any, Dict, Tuple


def split_spec(spec: Any) -> Tuple[Any, Dict[str, Any]]:
    """Separate `("sgd", {"learning_rate": 0.1})` into both parts; a name or an object has no arguments.

    >>> split_spec("l2"), split_spec(("huber", {"rho": 2}))
    (('l2', {}), ('huber', {'rho': 2}))
    """
    if isinstance(spec, (tuple, list)) and len(spec) == 2 and isinstance(spec[0], str) and isinstance(spec[1], dict):
        return spec[0], dict(spec[1])
    return spec, {}
