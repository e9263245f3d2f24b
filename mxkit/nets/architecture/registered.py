"""Blocks of one's own: which ones a description may name, and what their constructors were called with."""

import functools
from importlib import import_module
import inspect
from typing import Any, Callable, Dict, Mapping, Optional, Type, TypeVar

from mxkit.errors import ArchitectureError
from mxkit.nets.architecture.stock import SUPPORTED
from mxkit.nets.architecture.values import DTYPE, initializer, plain
import mxnet as mx
from mxnet import gluon
import numpy as np

REGISTERED: Dict[str, Type[Any]] = {}
# mxkit's own blocks, registered when their module is imported: a fresh process loads a saved net without it.
_OWN_BLOCKS = {"SizedNet": "mxkit.models.sizes", "Siamese": "mxkit.models.siamese"}
# Where an instance keeps what its constructor was called with.
CALL = "_mxkit_call"
_NAMES = ("prefix", "params")
_DEPTH = 100
_Class = TypeVar("_Class", bound=Type[Any])


def registered_block(name: Any) -> Optional[Type[Any]]:
    """The registered block that a description names, or None."""
    if isinstance(name, str) and name not in REGISTERED and name in _OWN_BLOCKS:
        import_module(_OWN_BLOCKS[name])
    return REGISTERED.get(name) if isinstance(name, str) else None


def register_block(kind: _Class) -> _Class:
    """Let `describe` and `build` know a block of your own; a decorator for its class.

    Instances made from now on remember what their constructor was called with, defaults included, and are described
    by that: so the constructor must do the same whenever it is called with the same arguments. Its arguments may be
    plain values, tuples, lists and dicts of them, dtypes, initializers, known classes of blocks, and blocks that
    become the instance's children. `prefix` and `params` are not kept, as names are not.

    A description can only name classes that were registered, and hands any plain values to their constructors: one
    that opens files or runs commands should not be registered where descriptions come from strangers.

    Args:
        kind: A subclass of gluon.Block, which may be somebody else's: `register_block(gluoncv.nn.block.Consensus)`.
            A class of the same module and name takes the place of the one before, as a notebook's cell run twice.

    Returns:
        The class, whose `__init__` is wrapped.

    Raises:
        ArchitectureError: It is no block, another known block has its name, or its constructor takes arguments that
            have no names (`*args`, or before a `/`).

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
            f"register_block: {name} takes {', '.join(map(str, nameless))} without a name, which is not kept; "
            "give it one argument that is a list"
        )
    if other is not kind or name not in REGISTERED:
        kind.__init__ = _remembering(kind, kind.__init__, signature)
        REGISTERED[name] = kind
    return kind


def _remembering(kind: Type[Any], init: Callable[..., None], signature: inspect.Signature) -> Callable[..., None]:
    @functools.wraps(init)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        # a subclass that is not registered has another forward pass; a registered one remembers its own call
        if type(self) is kind:
            vars(self)[CALL] = _call(signature, self, args, kwargs)
        init(self, *args, **kwargs)

    return made


def _call(signature: inspect.Signature, block: Any, args: Any, kwargs: Any) -> Dict[str, Any]:
    try:
        bound = signature.bind(block, *args, **kwargs)
    except TypeError:
        return {}  # the constructor is about to say so itself
    given = set(bound.arguments)
    bound.apply_defaults()
    call: Dict[str, Any] = {}
    for number, (name, value) in enumerate(bound.arguments.items()):
        if number == 0:
            continue
        if signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            call.update(value)
        elif name in given or _is_plain(value):
            call[name] = value
    return {name: snapshot(value) for name, value in call.items() if name not in _NAMES}


def snapshot(value: Any) -> Any:
    """A value whose containers nobody else changes.

    >>> sizes = [1]; kept = snapshot({"sizes": sizes}); sizes.append(2); kept
    {'sizes': [1]}
    """
    if type(value) is dict:
        return {name: snapshot(one) for name, one in value.items()}
    return type(value)(map(snapshot, value)) if type(value) in (list, tuple) else value


def _is_plain(value: Any) -> bool:
    """Whether a default has a form in JSON; one that has none stays the constructor's affair."""
    try:
        encode(value, _no_child)
    except TypeError:
        return False
    return True


def _no_child(block: Any) -> str:
    raise TypeError(f"the block {type(block).__name__} is no child")


def encode(value: Any, child: Callable[[Any], str]) -> Any:
    """A constructor's argument as JSON knows it; what JSON lacks is a dict with one key that begins with $.

    Args:
        value: The argument.
        child: Gives the name that a block among the arguments has as a child, or raises TypeError.

    Raises:
        TypeError: It has no such form.

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
            f"{value!r:.100} of type {type(value).__name__} is no plain list, tuple, or dict with text for keys "
            "that do not begin with $"
        )
    return plain(value)


def known_class(name: Any) -> Optional[Type[Any]]:
    """The stock or registered class of a name."""
    return SUPPORTED[name][0] if name in SUPPORTED else REGISTERED.get(name)


def decode(value: Any, children: Mapping[str, Any], depth: int = 0) -> Any:
    """The argument that `encode` told.

    Args:
        value: What `encode` returned, or a stranger wrote.
        children: Finished blocks by name.
        depth: How deep the value lies in others.

    Raises:
        ValueError: It tells none.
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
    ((name, told),) = value.items()
    return _special(name, told, children, depth)


def _special(name: str, told: Any, children: Mapping[str, Any], depth: int) -> Any:
    if name == "$tuple" and isinstance(told, list):
        return tuple(decode(told, children, depth + 1))
    if name == "$child" and isinstance(told, str) and told in children:
        return children[told]
    if name == "$initializer" and isinstance(told, list):
        return initializer(told)
    if name == "$class" and isinstance(told, str) and known_class(told):
        return known_class(told)
    if name == "$dtype" and isinstance(told, str) and DTYPE.fits(told):
        return np.dtype(told).type
    raise ValueError(
        "expected $tuple, $child, $initializer, $class or $dtype of something that is known, "
        f"received {name!r:.50}: {told!r:.100}"
    )
