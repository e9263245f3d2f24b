"""Registered blocks: the classes that a description may name, and the arguments of their constructors."""

import functools
from importlib import import_module
import inspect
from typing import Any, Callable, Dict, Mapping, Optional, Sequence, Type, TypeVar

from mxkit.errors import ArchitectureError
from mxkit.nets.architecture.stock import SUPPORTED
from mxkit.nets.architecture.values import DTYPE, initializer, plain
import mxnet as mx
from mxnet import gluon
import numpy as np

REGISTERED: Dict[str, Type[Any]] = {}
# mxkit's own blocks are registered when their module is imported, which a process that loads a net need not have done.
_OWN_BLOCKS = {"SizedNet": "mxkit.models.sizes", "Siamese": "mxkit.models.siamese"}
# Attribute of an instance that holds the arguments of its constructor.
CALL = "_mxkit_call"
_NAMES = ("prefix", "params")
_DEPTH = 100
_Class = TypeVar("_Class", bound=Type[Any])


def registered_block(name: Any) -> Optional[Type[Any]]:
    """Return the registered block of a name, or None."""
    if isinstance(name, str) and name not in REGISTERED and name in _OWN_BLOCKS:
        import_module(_OWN_BLOCKS[name])
    return REGISTERED.get(name) if isinstance(name, str) else None


def register_block(kind: _Class) -> _Class:
    """Register a block of your own for `describe` and `build`; a decorator for its class.

    Instances made from now on record the arguments of their constructor, defaults included, which describe them. So
    the constructor must do the same whenever it gets the same arguments. Arguments may be plain values, tuples, lists
    and dicts of them, dtypes, initializers, known classes of blocks, and blocks that become the instance's children.
    `prefix` and `params` are not recorded.

    `build` calls the constructors of registered classes with any plain values that a description holds: do not
    register a class that opens files or runs commands if you load descriptions from strangers.

    Args:
        kind: A subclass of gluon.Block; other packages' classes too: `register_block(gluoncv.nn.block.Consensus)`.
            A class of the same module and name replaces an earlier one, as when a notebook's cell runs twice.

    Returns:
        The class, whose `__init__` is wrapped.

    Raises:
        ArchitectureError: `kind` is not a block, another known block has its name, or its constructor takes arguments
            that have no names (`*args`, or before a `/`).

    >>> @register_block
    ... class Doubled(mx.gluon.HybridBlock):
    ...     def __init__(self, units, **kwargs):
    ...         super().__init__(**kwargs)
    ...         self.dense = mx.gluon.nn.Dense(units)
    ...     def hybrid_forward(self, F, x):
    ...         return 2 * self.dense(x)
    >>> mxkit.nets.describe(Doubled(3))["net"]
    {'class': 'Doubled', 'arguments': {'units': 3}}
    """
    if not (isinstance(kind, type) and issubclass(kind, gluon.Block)):
        raise ArchitectureError(f"register_block: expected a subclass of gluon.Block, received {kind!r:.200}")
    name = kind.__name__
    other = known_class(name) or kind
    if name in SUPPORTED or (other.__module__, other.__qualname__) != (kind.__module__, kind.__qualname__):
        raise ArchitectureError(f"register_block: two blocks are called {name!r}, {other!r} and {kind!r}: rename one")
    signature = inspect.signature(kind.__init__)
    nameless = [one for one in signature.parameters.values() if one.kind in (one.POSITIONAL_ONLY, one.VAR_POSITIONAL)]
    if nameless:
        raise ArchitectureError(
            f"register_block: {name} takes {', '.join(map(str, nameless))} without a name, which is not recorded; "
            "give it one argument that is a list"
        )
    if other is not kind or name not in REGISTERED:
        kind.__init__ = _recording(kind, kind.__init__, signature)
        REGISTERED[name] = kind
    return kind


def _recording(kind: Type[Any], init: Callable[..., None], signature: inspect.Signature) -> Callable[..., None]:
    @functools.wraps(init)
    def recorded(self: Any, *args: Any, **kwargs: Any) -> None:
        # a subclass that is not registered has another forward pass; a registered one records its own call
        if type(self) is kind:
            call = constructor_arguments(signature, self, args, kwargs, _is_plain)
            vars(self)[CALL] = {name: snapshot(value) for name, value in call.items()}
        init(self, *args, **kwargs)

    return recorded


def constructor_arguments(
    signature: inspect.Signature,
    block: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    keep_default: Callable[[Any], bool] = lambda value: True,
) -> Dict[str, Any]:
    """Return the arguments of a constructor's call by name, without `prefix` and `params`.

    Args:
        signature: Of the constructor.
        block: The new instance.
        args: The positional arguments.
        kwargs: The named arguments.
        keep_default: Returns True for a default that belongs to the result.
    """
    try:
        bound = signature.bind(block, *args, **kwargs)
    except TypeError:
        return {}  # the constructor raises it too; or `copy` makes an instance without arguments
    passed = set(bound.arguments)
    bound.apply_defaults()
    arguments: Dict[str, Any] = {}
    for name, value in list(bound.arguments.items())[1:]:
        if signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            arguments.update(value)
        elif name in passed or keep_default(value):
            arguments[name] = value
    return {name: value for name, value in arguments.items() if name not in _NAMES}


def snapshot(value: Any) -> Any:
    """Copy the containers of a value.

    >>> sizes = [1]; copied = snapshot({"sizes": sizes}); sizes.append(2); copied
    {'sizes': [1]}
    """
    if type(value) is dict:
        return {name: snapshot(one) for name, one in value.items()}
    return type(value)(map(snapshot, value)) if type(value) in (list, tuple) else value


def _is_plain(value: Any) -> bool:
    """Return True if a default has a form in JSON."""

    def refuse(block: Any) -> str:
        raise TypeError

    try:
        encode(value, refuse)
    except TypeError:
        return False
    return True


def encode(value: Any, child: Callable[[Any], str]) -> Any:
    """Return a constructor's argument as JSON values; a type that JSON lacks is a dict whose one key begins with $.

    Args:
        value: The argument.
        child: Returns the name that a block among the arguments has as a child, or raises TypeError.

    Raises:
        TypeError: The argument has no such form.

    >>> encode({"sizes": (3, 1), "init": mx.init.Zero()}, str)
    {'sizes': {'$tuple': [3, 1]}, 'init': {'$initializer': ['zero', {}]}}
    """
    if type(value) is dict and all(isinstance(name, str) and not name.startswith("$") for name in value):
        return {name: encode(one, child) for name, one in value.items()}
    if type(value) is list:
        return [encode(one, child) for one in value]
    if type(value) is tuple:
        return {"$tuple": [encode(one, child) for one in value]}
    if isinstance(value, gluon.Block):
        return {"$child": child(value)}
    if isinstance(value, mx.init.Initializer):
        return {"$initializer": plain(value)}
    if isinstance(value, type) and issubclass(value, gluon.Block):
        name = value.__name__
        if known_class(name) is not value:
            raise TypeError(f"the class {name} is not known: decorate it with @mxkit.nets.register_block")
        return {"$class": name}
    if isinstance(value, (np.dtype, type)):
        return {"$dtype": plain(value)}
    if isinstance(value, (dict, list, tuple)):
        raise TypeError(
            f"{value!r:.100} of type {type(value).__name__} is not a plain list, tuple, or dict with text for keys "
            "that do not begin with $"
        )
    return plain(value)


def known_class(name: Any) -> Optional[Type[Any]]:
    """Return the stock or registered class of a name, or None."""
    return SUPPORTED[name][0] if name in SUPPORTED else REGISTERED.get(name)


def decode(value: Any, children: Mapping[str, Any], depth: int = 0) -> Any:
    """Return the argument that `encode` encoded.

    Args:
        value: The result of `encode`, or a value from a hostile description.
        children: Finished blocks by name.
        depth: Number of lists and dicts around the value.

    Raises:
        ValueError: The value is not a result of `encode`.
    """
    if depth > _DEPTH:
        raise ValueError(f"a value is nested deeper than {_DEPTH} levels")
    if isinstance(value, list):
        return [decode(one, children, depth + 1) for one in value]
    if not isinstance(value, dict):
        return plain(value)
    if not all(isinstance(name, str) for name in value):
        raise ValueError(f"expected text for keys, received {value!r:.100}")
    if not any(name.startswith("$") for name in value):
        return {name: decode(one, children, depth + 1) for name, one in value.items()}
    if len(value) != 1:
        raise ValueError(f"expected one key where one begins with $, received {value!r:.100}")
    ((name, content),) = value.items()
    if name == "$tuple" and isinstance(content, list):
        return tuple(decode(content, children, depth + 1))
    if name == "$child" and isinstance(content, str) and content in children:
        return children[content]
    if name == "$initializer" and isinstance(content, list):
        return initializer(content)
    if name == "$class" and isinstance(content, str) and known_class(content):
        return known_class(content)
    if name == "$dtype" and isinstance(content, str) and DTYPE.fits(content):
        return np.dtype(content).type
    raise ValueError(
        "expected $tuple, $child, $initializer, $class or $dtype of something known, "
        f"received {name!r:.50}: {content!r:.100}"
    )
