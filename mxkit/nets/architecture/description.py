"""A net's architecture as plain JSON, and nets built from it: names are looked up in lists, no code is executed."""

from itertools import count
import reprlib
from typing import Any, Callable, Dict, Iterator, List, Mapping, Sequence, Tuple, Type

from mxkit.core.blocks import (
    blocks_by_path,
    child_blocks,
    distinct,
    first_paths,
    join_path,
    own_parameters,
    parameters_by_path,
    replace_parameter,
)
from mxkit.core.replicas import is_differentiable, set_differentiable, values_of
from mxkit.errors import ArchitectureError, nearest
from mxkit.nets.architecture.arguments import argument, initializer, plain
from mxkit.nets.architecture.catalog import (
    CALL,
    MADE,
    NUMBERS,
    REGISTERED,
    SUPPORTED,
    class_name,
    decode,
    encode,
    library_call,
    make_model,
    read_argument,
    registered_block,
)
from mxkit.nets.hybridizing import fast_norm
from mxkit.runtime.gluon_layers import LIBRARY_CALL
import mxnet as mx
from mxnet import gluon
import numpy as np

FORMAT = 1
_DEPTH = 100
_REFUSALS: Tuple[Type[Exception], ...] = (ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError)
_REFUSALS += (TypeError, ValueError, mx.MXNetError)


def build(description: Mapping[str, Any]) -> Any:
    """Build the net that `describe` described.

    No code of a description is executed: classes are looked up among MXNet's own and those with
    `@register_block`, models in the tables of the zoos, and classes of blocks of gluonnlp, gluoncv2 and gluonts,
    whose modules are imported. Constructors get plain values and known blocks, and decide
    what they take. No weights are loaded.

    Args:
        description: The result of `describe`, which may have been stored as JSON. Missing arguments get their
            defaults. A block may be a model of a zoo: `{"model": "zoo:resnet18_v2"}`.

    Returns:
        An uninitialized net with the same parameter paths and the same forward pass. Names and prefixes are new, and
        the net is not hybridized.

    Raises:
        ArchitectureError: The description has another format, an unknown class or argument, a value that a constructor
            does not take, or more than 100 levels; the text names the block by its path.

    >>> net = build({"format": 1, "net": {"class": "Dense", "arguments": {"units": 3, "activation": "relu"}}})
    >>> net.initialize(); net(mx.nd.ones((2, 5))).shape
    (2, 3)
    """
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        found = description.get("format") if isinstance(description, dict) else description
        raise ArchitectureError(
            f"the description has format {found!r:.100}; this mxkit builds {FORMAT}. Use a newer mxkit"
        )
    return _attempt("the description", description, _built, description)


def _built(description: Dict[str, Any]) -> Any:
    _refuse_unknown(description, ("format", "net", "parameters", "shared_parameters"))
    net = _Builder().block(description["net"], "", 0)
    for path, twin in description.get("shared_parameters", {}).items():
        _share(net, parameters_by_path(net), path, twin)
    parameters = parameters_by_path(net)
    for path, states in description.get("parameters", {}).items():
        _attempt(f"parameter {path!r}", states, _set_states, _lookup(parameters, path), states)
    return net


def _attempt(where: str, part: Any, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function with a part of a description, whose form or values may be wrong."""
    try:
        return function(*arguments)
    except ArchitectureError:
        raise
    except _REFUSALS as error:
        text = f"{where}: {reprlib.repr(part):.300} is refused: {type(error).__name__}: {error!s:.1000}"
        raise ArchitectureError(text) from error


def _refuse_unknown(fields: Mapping[str, Any], known: Sequence[str]) -> None:
    for name in fields:
        if name not in known:
            hint = nearest(str(name), known)
            raise ValueError(f"unknown name {name!r:.100}{': ' * bool(hint)}{hint} Known are {', '.join(known)}")


class _Builder:
    """One pass over a description; it keeps finished blocks by path, because a description may refer to them."""

    def __init__(self) -> None:
        self._finished: Dict[str, Any] = {}

    def block(self, node: Any, path: str, depth: int) -> Any:
        """Build a block with all blocks inside it."""
        where = f"block {path!r}" if path else "the net"
        if depth > _DEPTH:
            raise ArchitectureError(f"{where}: blocks are nested deeper than {_DEPTH} levels")
        self._finished[path] = _attempt(where, node, self._new, node, path, depth)
        return self._finished[path]

    def _new(self, node: Dict[str, Any], path: str, depth: int) -> Any:
        if "shared" in node:
            return self._finished[node["shared"]]
        kind = "model" if "model" in node else "class"
        _refuse_unknown(node, (kind, "name", "arguments", *["children"] * (kind == "class")))
        name, arguments = node[kind], node.get("arguments", {})
        if kind == "model":
            return _model(name, arguments)
        children = _children(node.get("children", []))
        registered = registered_block(name)
        if registered is None and name not in SUPPORTED:
            hint = nearest(name, [*SUPPORTED, *REGISTERED])
            raise ValueError(
                f"unknown class {name!r:.100}{': ' * bool(hint)}{hint} For a block of your own, first import its "
                "class, decorated with @mxkit.nets.register_block, or call mxkit.nets.register_block(Class)"
            )

        def build_child(child: str) -> Any:
            return self.block(children[child], join_path(path, child), depth + 1)

        if registered is not None:
            return _registered(registered, arguments, {child: build_child(child) for child in children})
        return _stock(name, arguments, children, build_child)


def _model(name: str, arguments: Dict[str, Any]) -> Any:
    refused = [argument for argument in NUMBERS if argument in arguments]
    if refused:
        raise ValueError(f"{', '.join(refused)}: a description makes nets without weights")
    return make_model(name, {key: decode(value, {}) for key, value in arguments.items()})


def _registered(kind: Type[Any], arguments: Dict[str, Any], children: Dict[str, Any]) -> Any:
    block = kind(**{name: decode(value, children) for name, value in arguments.items()})
    unused = [name for name, child in children.items() if child_blocks(block).get(name) is not child]
    if unused:
        raise ValueError(
            f"{kind.__name__} makes its children by itself, except those among its arguments; it does not take "
            f"{', '.join(unused)!s:.200}"
        )
    return block


def _stock(name: str, arguments: Dict[str, Any], children: Dict[str, Any], build_child: Callable[[str], Any]) -> Any:
    kind, stock = SUPPORTED[name]
    _refuse_unknown(arguments, stock.arguments)
    checked = {key: argument(key, value) for key, value in arguments.items()}
    if set(stock.parts) - set(children):
        raise ValueError(f"{name} has the children {', '.join(stock.parts)}; received {', '.join(children) or 'none'}")
    if stock.assembled:
        block = object.__new__(kind)
        gluon.HybridBlock.__init__(block)
        block.downsample = None  # an optional child
        for key in stock.arguments:
            setattr(block, key, checked[key])
        rest = list(children)
    else:
        block = (stock.make or kind)(**checked, **{part: build_child(part) for part in stock.parts})
        rest = [child for child in children if child not in stock.parts]
    with block.name_scope():
        for child in rest:
            _attach(block, child, build_child(child))
    return block


def _children(nodes: List[Any]) -> Dict[str, Any]:
    """Return nodes of children by name; the default name is the child's number."""
    names = [node.get("name", str(number)) for number, node in enumerate(nodes)]
    if len(set(names)) < len(names) or any(not name or "." in name for name in names):
        raise ValueError(f"children: expected names that differ, without dots; received {names!r:.200}")
    return dict(zip(names, nodes))


def _attach(block: Any, name: str, child: Any) -> None:
    """Register a child and set it as an attribute, unless that would hide an attribute of the class."""
    if name == "_activation" or (name.isidentifier() and getattr(block, name, None) is None):
        setattr(block, name, child)
    else:
        block.register_child(child, name)


def _lookup(parameters: Mapping[str, Any], path: str) -> Any:
    if path not in parameters:
        hint = nearest(str(path), parameters)
        raise ArchitectureError(f"the net has no parameter {path!r:.200}{': ' * bool(hint)}{hint}")
    return parameters[path]


def _share(net: Any, parameters: Mapping[str, Any], path: str, twin: Any) -> None:
    """Replace the parameter at `path` by that at `twin`, as `params=` of a constructor does."""
    old, new = _lookup(parameters, path), _lookup(parameters, twin)
    graphs = [block for _, block in blocks_by_path(net) if type(block) is gluon.SymbolBlock]
    if any(old in own_parameters(block).values() for block in graphs):
        old, new = new, old  # a graph finds its parameters by their names
    # a parameter of a graph may have no shape
    if old.shape and new.shape and len(old.shape) != len(new.shape):
        raise ArchitectureError(f"{path!r} {old.shape} cannot be {twin!r} {new.shape}: their shapes differ")
    for _, block in blocks_by_path(net):
        for name in [name for name, parameter in own_parameters(block).items() if parameter is old]:
            replace_parameter(block, name, new)


def _set_states(parameter: Any, states: Dict[str, Any]) -> None:
    _refuse_unknown(states, ("differentiable", "dtype", "grad_req", "initializer", "lr_mult", "shape", "wd_mult"))
    for name, value in states.items():
        if name == "initializer":
            parameter.init = initializer(value)
        elif name == "differentiable":
            set_differentiable(parameter, bool(value))
        else:
            setattr(parameter, name, argument(name, value))


_NUMBERS = count()


def describe(net: Any) -> Dict[str, Any]:
    """Describe a net's architecture as plain JSON values, without its weights.

    Classes and arguments are read from the blocks' attributes, because a repr loses many of them (T55). The
    description is built once and compared with the net: a difference is an error.

    Args:
        net: A net of MXNet's own blocks: gluon.nn, gluon.rnn, gluon.contrib.nn, gluon.contrib.rnn, SymbolBlocks and
            the model zoo, nested to any depth, with shared blocks and shared parameters. A net of gluoncv must come
            from `mxkit.models.get_model`. The class of a block of your own needs `@register_block`, another
            library's `register_block(Class)`, but not gluonnlp's, gluoncv2's and gluonts'; its constructor makes its
            children. The net may be uninitialized,
            hybridized, in training, on any devices.

    Returns:
        `{"format": 1, "net": {...}}`. A block has "class", "arguments" and "children"; a block that stands before has
        `{"shared": path}`; a net of gluoncv has `{"model": name, "arguments": {...}}`. "parameters" holds settings
        by path that differ from those of a new net (frozen, cast, multipliers), "shared_parameters" the paths that
        hold another path's parameter. Names, hooks and hybridization are not described.

    Raises:
        ArchitectureError: A block cannot be described, or the net built from its description differs; the text lists
            all such blocks, with the reason and the solution.

    >>> net = gluon.nn.HybridSequential(); net.add(gluon.nn.ELU(2.0))
    >>> describe(net)["net"]
    {'class': 'HybridSequential', 'children': [{'class': 'ELU', 'arguments': {'alpha': 2.0}}]}
    """
    walk = _Walk()
    description: Dict[str, Any] = {"format": FORMAT, "net": walk.node(net, "", ())}
    _refuse(walk.problems)
    # in a scope of its own, so that Gluon's counters of names do not move (T37); each scope has another prefix, because
    # Gluon warns of a second Constant of the same name at the same address
    with gluon.nn.HybridSequential(prefix=f"described{next(_NUMBERS)}_").name_scope():
        twin = build(description)
        shared = _shared_parameters(net, twin)
        if shared:
            description["shared_parameters"] = shared
            twin = build(description)
    problems = _losses(net, twin)
    _refuse(problems)
    settings = {path: differing for path, differing in _states(net, twin, problems) if differing}
    _refuse(problems)
    if settings:
        description["parameters"] = settings
    return description


def _refuse(problems: List[str]) -> None:
    if problems:
        raise ArchitectureError("\n  ".join(["the net cannot be described:", *problems[:20]]))


class _Walk:
    """One walk over a net; it collects all problems, so that one error can list them."""

    def __init__(self) -> None:
        self.problems: List[str] = []
        self._seen: Dict[int, str] = {}

    def node(self, block: Any, path: str, above: Tuple[int, ...]) -> Dict[str, Any]:
        """Describe a block with all blocks inside it."""
        kind, name, where, below = type(block), type(block).__name__, _where(path, block), child_blocks(block)
        if id(block) in above:
            raise ArchitectureError(f"{where}: it is its own descendant; remove it from {path.rpartition('.')[0]!r}")
        if id(block) in self._seen:
            return {"shared": self._seen[id(block)]}
        self._seen[id(block)] = path
        names: Dict[int, str] = {id(child): name for name, child in reversed(list(below.items()))}
        used = set()

        def child(one: Any) -> str:
            if id(one) not in names:
                raise TypeError(f"the {type(one).__name__} that it was made with is not, or no longer, its child")
            used.add(names[id(one)])
            return names[id(one)]

        call = getattr(block, CALL, None) if REGISTERED.get(name) is kind else library_call(block)
        if SUPPORTED.get(name, (None, None))[0] is kind:
            read = {one: lambda one=one: plain(read_argument(block, one)) for one in SUPPORTED[name][1].arguments}
            node: Dict[str, Any] = {"class": name, "arguments": self._read(where, read)}
            if "activation" in node["arguments"] and type(below.get("act")) is gluon.nn.Activation:
                below = {name: one for name, one in below.items() if name != "act"}  # the argument describes it
        elif call is not None:
            read = {one: lambda value=value: encode(value, child) for one, value in call.items()}
            node = {"class": class_name(kind), "arguments": self._read(where, read)}
            below = {name: one for name, one in below.items() if name in used}
        elif hasattr(block, MADE):
            model, arguments = getattr(block, MADE)
            read = {one: lambda value=value: encode(value, child) for one, value in arguments.items()}
            node, below = {"model": model, "arguments": self._read(where, read)}, {}
        else:
            self.problems.append(f"{where}: {_way_out(block)}")
            return {}
        node["children"] = list(self._nodes(below, path, (*above, id(block))))
        return {key: value for key, value in node.items() if value}

    def _read(self, where: str, arguments: Mapping[str, Callable[[], Any]]) -> Dict[str, Any]:
        values = {}
        for name, read in arguments.items():
            try:
                values[name] = read()
            except (TypeError, AttributeError, LookupError) as error:
                self.problems.append(f"{where}: {name}: {error}")
        return values

    def _nodes(self, below: Mapping[str, Any], path: str, above: Tuple[int, ...]) -> Iterator[Dict[str, Any]]:
        for number, (name, child) in enumerate(below.items()):
            if "." in name or not name:
                place = _where(join_path(path, name), child)
                self.problems.append(f"{place}: a child's name has dots, or is empty; register it with another")
            node = self.node(child, join_path(path, name), above)
            yield node if name == str(number) else {"name": name, **node}


def _way_out(block: Any) -> str:
    kind: Type[Any] = type(block)
    if REGISTERED.get(kind.__name__) is kind:
        return "it was made before its class was registered, or copied without its arguments; make it again"
    of_gluoncv = kind.__module__.startswith("gluoncv.")
    gluoncv = "make the whole net with mxkit.models.get_model('gluoncv:...'); or " if of_gluoncv else ""
    return (
        f"its forward pass is not known: {gluoncv}call mxkit.nets.register_block({kind.__name__}) with the class of "
        f"{kind.__module__}, or write it as the decorator of your own class, and make the net again"
    )


# Attributes that are not compared: names, caches, hooks, and sizes, which are compared by the parameters' shapes.
IGNORED = {
    *vars(gluon.HybridBlock(prefix="")),
    *("_in_units", "_in_channels", "in_channels", "_input_size"),
    "_clip",  # gluoncv's decoders of boxes set it to -1, their None, when they run
    "_op_name",  # of a convolution: its class determines it, and the switches of MXNet how it is spelled
    *("skip_states", "_counter", "_init_counter", "_prev_output", "mxkit_name"),
    *("report", "_graph", "_graphs", "_held"),  # of an OptimizedNet
    *(CALL, MADE, LIBRARY_CALL),
}
_DEFERRED = ("in_units", "in_channels", "input_size")


_BY_FILE = (
    "stands in a description by its name: save its values with net.save_parameters(file), and read them with "
    "mxkit.load_parameters(net, file) into a net that was made and changed in the same way"
)


def _losses(net: Any, twin: Any) -> List[str]:
    """Return a line for each child, attribute and parameter of the net that its rebuilt twin does not have."""
    ours, theirs = parameters_by_path(net), parameters_by_path(twin)
    lost = [f"parameter {path}: it would not be rebuilt" for path in ours if path not in theirs]
    added = [f"parameter {path}: it would come in addition" for path in theirs if path not in ours]
    problems = [*_block_losses(net, twin, ""), *lost, *added]
    if problems and hasattr(net, MADE):
        problems.insert(0, f"it was changed since get_model made it, as finetune does, and {_BY_FILE}")
    return problems


def _where(path: str, block: Any) -> str:
    """Return path and class of a block, for errors."""
    return f"{path or 'the net'} ({type(block).__module__}.{type(block).__qualname__})"


def _block_losses(block: Any, twin: Any, path: str) -> Iterator[str]:
    if type(block) is not type(twin) or list(child_blocks(block)) != list(child_blocks(twin)):
        yield (
            f"{_where(path, block)}: it would be rebuilt as {type(twin).__name__} with the children "
            f"{list(child_blocks(twin))!s:.500}, where it has {list(child_blocks(block))!s:.500}"
        )
        return
    for name, value in vars(block).items():
        if name not in IGNORED and not name.endswith("_initializer"):
            loss = _loss(block, twin, name, value)
            if loss:
                yield f"{_where(path, block)}: {loss}"
    for name, child in child_blocks(block).items():
        yield from _block_losses(child, child_blocks(twin)[name], join_path(path, name))


def _loss(block: Any, twin: Any, name: str, value: Any) -> str:
    if name not in vars(twin):
        # another attribute was set by a user, and no class of MXNet reads it; a fast norm has the usual parameters
        replaced = callable(getattr(type(block), name, None)) and getattr(value, "func", None) is not fast_norm
        return f"its method {name} was replaced by {value!r:.100}" if replaced else ""
    ours, theirs = _comparable(value), _comparable(vars(twin)[name])
    if ours == theirs:
        return ""
    way_out = ". Make it an argument of the constructor, or set it back" if hasattr(block, CALL) else ""
    return f"its {name} is {ours!r:.200}, and would be {theirs!r:.200}{way_out}"


def _comparable(value: Any) -> Any:
    if isinstance(value, dict):
        # SyncBatchNorm's key is its name
        return {name: _comparable(one) for name, one in value.items() if name != "key"}
    try:
        return plain(value)
    except TypeError:
        return None


def _shared_parameters(net: Any, twin: Any) -> Dict[str, str]:
    """Return pairs of paths that hold one parameter in the net, and two in its rebuilt twin."""
    ours, theirs = parameters_by_path(net), parameters_by_path(twin)
    first = first_paths(ours)
    pairs = {path: first[id(parameter)] for path, parameter in ours.items()}
    return {
        path: shared
        for path, shared in pairs.items()
        if path != shared and path in theirs and theirs.get(shared) is not theirs[path]
    }


def _states(net: Any, twin: Any, problems: List[str]) -> Iterator[Tuple[str, Dict[str, Any]]]:
    """Yield settings of each parameter that its twin does not have; settings without a form in JSON are problems."""
    theirs = parameters_by_path(twin)
    for path, parameter in distinct(parameters_by_path(net)).items():
        other = theirs[path]
        if type(parameter) is not type(other):
            problems.append(f"parameter {path}: its class {type(parameter).__name__} would be lost")
        for name in ("_stype", "_grad_stype"):
            if getattr(parameter, name) != getattr(other, name):
                problems.append(f"parameter {path}: its {name[1:]} {getattr(parameter, name)!r} would be lost")
        shape, twins = ([max(0, size) for size in _shape(one)] for one in (parameter, other))
        defaults = _state(other)
        state = {name: value for name, value in _state(parameter).items() if value != defaults[name]}
        if shape != twins and 0 not in shape:
            state = {"shape": shape, **state}
        try:
            state.update(_initializer(parameter, other))
        except TypeError as error:
            problems.append(f"parameter {path}: {error}")
        yield path, state


def _shape(parameter: Any) -> Tuple[int, ...]:
    if parameter.shape is None and values_of(parameter):  # of a SymbolBlock that was read from files
        return tuple(parameter.list_data()[0].shape)
    return parameter.shape or ()


def _state(parameter: Any) -> Dict[str, Any]:
    return {
        "dtype": plain(parameter.dtype),
        "grad_req": parameter.grad_req,
        "differentiable": is_differentiable(parameter),
        "lr_mult": plain(parameter.lr_mult),
        "wd_mult": plain(parameter.wd_mult),
    }


def _initializer(parameter: Any, other: Any) -> Dict[str, Any]:
    """Return the initializer of a parameter if its twin has another one.

    Raises:
        TypeError: The initializer has no form in JSON, or a constant has another value.
    """
    if isinstance(parameter, gluon.Constant):  # the name of its initializer has an address in it
        if isinstance(other, gluon.Constant) and np.array_equal(parameter.value.asnumpy(), other.value.asnumpy()):
            return {}
        raise TypeError("its constant value would be lost")
    same = parameter.init == other.init or plain(parameter.init) == plain(other.init)
    return {} if same else {"initializer": plain(parameter.init)}


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> List[str]:
    """Compare two descriptions: classes, arguments and children.

    Sizes that one of them does not know yet, initializers and settings of parameters are not compared.

    Args:
        ours: A result of `describe`.
        theirs: Another one.

    Returns:
        A line for each difference, with the path of its block.

    >>> relu, tanh = (mxkit.nets.describe(gluon.nn.Dense(2, activation=name)) for name in ("relu", "tanh"))
    >>> differences(relu, tanh)
    ["the net: activation: 'relu' here, 'tanh' there"]
    """
    left, right = _facts(ours["net"], ""), _facts(theirs["net"], "")
    for facts, description in ((left, ours), (right, theirs)):
        facts["", "shared_parameters"] = description.get("shared_parameters")
    lines = []
    for path, name in {**left, **right}:
        values = left.get((path, name)), right.get((path, name))
        if values[0] != values[1] and not (name in _DEFERRED and 0 in values):
            lines.append(f"{path or 'the net'}: {name}: {values[0]!r:.200} here, {values[1]!r:.200} there")
    return lines


def _facts(node: Mapping[str, Any], path: str) -> Dict[Tuple[str, str], Any]:
    """Return what `differences` compares of a block and those inside it, by path and name."""
    named = {child.get("name", str(number)): child for number, child in enumerate(node.get("children", []))}
    facts = {(path, name): node.get(name) for name in ("class", "model", "shared")}
    arguments = node.get("arguments", {})
    facts.update({(path, name): arguments[name] for name in arguments if not name.endswith("_initializer")})
    facts[path, "children"] = list(named)
    for name, child in named.items():
        facts.update(_facts(child, join_path(path, name)))
    return facts
