"""Symbol JSON files, checked before MXNet parses them.

One flipped bit in a graph's JSON ends the process (T58): MXNet follows the numbers of nodes and outputs without a
check, and divides by attributes. Some of its operators hold addresses of memory as text. This module checks each node
and gives MXNet a new text that contains only checked parts.

It cannot judge what a graph computes: MXNet's Reshape reads beyond an array that is too small for its shape, and such
a graph is valid. Graphs that mxkit exported carry a digest, which detects all damage.
"""

import ctypes
import hashlib
import json
from pathlib import Path
import re
from typing import Any, Dict, List, Mapping, NamedTuple, NoReturn, Optional, Sequence, Tuple, Union

from mxkit.core.arrays import of_kind
from mxkit.errors import CheckpointError, nearest
from mxkit.runtime.wheels import release
from mxkit.storage.params_format import open_file
import mxnet as mx
from mxnet.base import _LIB, c_str, check_call

_BYTES = 2**26
_LARGEST = 2**31 - 1
_MANY = 65536
_INSTALLED = sum(part * weight for part, weight in zip(release(mx.__version__), (10000, 100, 1)))
# Graphs of before 0.9 have no version, and do not name auxiliary states as inputs; MXNet adds both
_FIRST_WITH_STATES = 900
# Before 0.9 these were attributes of operators, for their parameters, and are no arguments of any operator
_HIDDEN = re.compile(r"(\w+_)?(ctx_group|lr_mult|wd_mult|force_mirroring|mirror_stage)")
_DIGEST = "mxkit_sha256"
_FIELDS = ("nodes", "arg_nodes", "node_row_ptr", "heads", "attrs")
# These operators hold addresses of memory, call back into the process that wrote them, or read files by name.
_REFUSED = frozenset(
    ["_Native", "_NDArray", "_CustomFunction", "_CachedOp", "_CachedOpThreadSafe", "_NoGradient", "_cvimread"]
    + ["_CrossDeviceCopy", "_foreach", "_while_loop", "_cond", "_FusedOp", "_FusedOpHelper", "_FusedOpOutHelper"]
)
# MXNet divides by these attributes (SIGFPE), or makes that many inputs or outputs.
_POSITIVE = frozenset(
    ["kernel", "stride", "dilate", "num_group", "num_groups", "num_filter", "num_hidden", "block_size", "num_outputs"]
    + ["num_args", "num_layers", "state_size", "sections", "num_weights", "num_tensors", "num_arrays"]
)
_COUNTS = frozenset(["num_outputs", "num_args", "sections", "num_weights", "num_tensors", "num_arrays", "num_layers"])
_SPLIT_BY_0 = re.compile(r"-4,\s*(0\b|[-\d]+,\s*0\b)")
_NUMBERS = re.compile(r"[-+]?\d+(?![\d.eE])")


class _Form(NamedTuple):
    """Number of inputs of an operator with its attributes, how many are states, and outputs that others may use."""

    inputs: int
    states: int
    outputs: int


def read_symbol(path: Union[str, Path], shapes: Optional[Mapping[str, Sequence[int]]] = None) -> Any:
    """Read a graph that `net.export`, `Module.save_checkpoint` or `symbol.save` wrote, safely.

    Args:
        path: A file of any MXNet up to 1.9.
        shapes: Shapes of the arrays that belong to variables. The shapes in the file must agree with them and are
            dropped after the check: plain Gluon writes shapes before it knows all sizes (T53).

    Returns:
        The Symbol; one of `mx.np` if the graph was traced under `npx.set_np()`.

    Raises:
        CheckpointError: The file is damaged, too new, or holds parts that could harm the process: subgraphs and
            operators with addresses.
        OSError: It does not exist or cannot be read.

    >>> path = getfixture("tmp_path") / "a.json"
    >>> mx.sym.exp(mx.sym.var("x")).save(str(path))
    >>> read_symbol(path).list_inputs()
    ['x']
    """
    path = Path(path)
    with open_file(path) as file:
        content = file.read(_BYTES + 1)
    if len(content) > _BYTES:
        raise CheckpointError(f"{path} is no graph: expected at most {_BYTES} bytes of JSON, received more")
    graph = _Graph(path, content)
    text = graph.checked(shapes or {})
    try:
        symbol = mx.sym.load_json(text)
        graph.check_names(symbol.list_inputs())
    except mx.MXNetError as error:
        raise CheckpointError(f"{path} is damaged: MXNet refuses it: {_last_line(error)}") from error
    return of_kind(symbol, graph.numpy)


def sealed(graph: Dict[str, Any]) -> Dict[str, Any]:
    """Add the digest of a graph to its attributes, where MXNet ignores it.

    >>> kind, digest = sealed({"nodes": []})["attrs"]["mxkit_sha256"]
    >>> kind, len(digest)
    ('str', 64)
    """
    attrs = {key: value for key, value in graph.get("attrs", {}).items() if key != _DIGEST}
    plain = {**graph, "attrs": attrs}
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return {**plain, "attrs": {**attrs, _DIGEST: ["str", hashlib.sha256(text.encode()).hexdigest()]}}


def _last_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or ["no message"])[-1][:300]


class _Graph:
    """The JSON of one graph; `checked` returns the parts that passed the checks."""

    def __init__(self, path: Path, content: bytes) -> None:
        self._path = path
        self._where = "the graph"
        self._forms: Dict[Any, _Form] = {}
        self._outputs: List[int] = []
        self.numpy = False
        self._known = frozenset(mx.operator.get_all_registered_operators())
        try:
            self._json = json.loads(content.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"{path} is no graph: expected JSON in UTF-8: {str(error)[:200]}") from error

    def checked(self, shapes: Mapping[str, Sequence[int]]) -> str:
        """Return the graph as JSON that contains only checked parts."""
        graph = self._dict(self._json, _FIELDS)
        attrs = self._attrs(graph["attrs"]) if "attrs" in graph else {}
        self._version = attrs["mxnet_version"][1] if attrs else 0
        nodes = self._list(graph.get("nodes"), "nodes")
        sound = [self._node(number, node) for number, node in enumerate(nodes)]
        self._where = "the graph"
        variables = [number for number, node in enumerate(sound) if node["op"] == "null"]
        heads = [self._entry(head, len(nodes)) for head in self._list(graph.get("heads"), "heads")]
        for node in sound:
            if node["op"] == "null" and node["name"] in shapes:
                self._drop_shape(node, shapes[node["name"]])
        self.numpy = attrs.get("is_np_shape") == ["int", 1]
        return json.dumps({"nodes": sound, "arg_nodes": variables, "heads": heads, "attrs": attrs})

    def check_names(self, names: Sequence[str]) -> None:
        """Refuse two variables of one name, also among those that MXNet added."""
        if len(set(names)) != len(names):
            self._refuse("variables with different names", next(name for name in names if names.count(name) > 1))

    def _drop_shape(self, node: Dict[str, Any], shape: Sequence[int]) -> None:
        sizes = [int(size) for size in _NUMBERS.findall(node["attrs"].pop("__shape__", "")[:1000])]
        node["attrs"].pop("__dtype__", None)
        fits = len(sizes) == len(shape) and all(size in (0, -1, own) for size, own in zip(sizes, shape))
        if sizes and not fits:
            self._refuse(f"{node['name']!r:.100} with the shape of its array, {tuple(shape)}", tuple(sizes))

    def _attrs(self, attrs: Any) -> Dict[str, Any]:
        sound = self._dict(attrs, ("mxnet_version", "is_np_shape", _DIGEST))
        if _DIGEST in sound and sound.pop(_DIGEST) != sealed(self._json)["attrs"][_DIGEST]:
            self._refuse("a graph as mxkit wrote it", "one that does not match its digest")
        version = sound.get("mxnet_version")
        if not (isinstance(version, list) and len(version) == 2 and version[0] == "int" and _is_index(version[1])):
            self._refuse('attrs with "mxnet_version": ["int", 10901]', attrs)
        if version[1] > _INSTALLED:
            self._refuse(f"a version of MXNet up to {_INSTALLED}", version[1])
        if sound.get("is_np_shape", ["int", 0]) not in (["int", 0], ["int", 1]):
            self._refuse('"is_np_shape": ["int", 0]', sound["is_np_shape"])
        return sound

    def _node(self, number: int, node: Any) -> Dict[str, Any]:
        self._where = f"node {number}"
        if isinstance(node, dict) and str(node.get("op")).startswith("_sg_mkldnn"):
            text = "holds operators that oneDNN joined: gluon.SymbolBlock.imports reads it; or write by save_net"
            raise CheckpointError(f"{self._path}: {node.get('name')!r:.100} {text}")
        # the last three before MXNet 1.0
        fields = self._dict(node, ("op", "name", "attrs", "inputs", "param", "attr", "backward_source_id"))
        op, name = fields.get("op"), fields.get("name")
        if not isinstance(op, str) or not _is_text(name) or not name:
            self._refuse("an operator and a name", (op, name))
        self._where = f"node {number}, {name!r:.100}"
        attrs = self._attributes(fields)
        inputs = [self._entry(entry, number) for entry in self._list(fields.get("inputs"), "inputs", least=0)]
        form = _Form(0, 0, 1) if op == "null" else self._form(op, attrs, len(inputs))
        implied = form.states if self._version < _FIRST_WITH_STATES else 0
        if len(inputs) not in (form.inputs, form.inputs - implied):
            self._refuse(f"{form.inputs} inputs of {op}", f"{len(inputs)}")
        self._outputs.append(form.outputs)
        return {"op": op, "name": name, "attrs": attrs, "inputs": inputs}

    def _attributes(self, fields: Mapping[str, Any]) -> Dict[str, str]:
        """Join the attributes of a node, which older versions of MXNet wrote under other keys."""
        attrs: Dict[str, str] = {}
        for key in ("param", "attr", "attrs"):
            some = fields.get(key, {})
            if not isinstance(some, dict) or not all(_is_text(name) and _is_text(some[name]) for name in some):
                self._refuse("attributes of text", some)
            attrs.update(some)
        old = self._version < _FIRST_WITH_STATES
        return {name: value for name, value in attrs.items() if not (old and _HIDDEN.fullmatch(name))}

    def _form(self, op: str, attrs: Dict[str, str], inputs: int) -> _Form:
        if op not in self._known:
            hint = nearest(op, sorted(self._known))
            self._refuse(f"an operator that MXNet {mx.__version__} has", f"{op!r:.100} {hint}")
        if op in _REFUSED or op.startswith(("_backward", "_sg_")):
            self._refuse("an operator that is plain arithmetic", f"{op}, which could harm the process")
        for key, value in attrs.items():
            self._numbers(op, key, value, inputs)
        own = tuple(sorted(item for item in attrs.items() if not item[0].startswith("__")))
        if (op, own) not in self._forms:
            self._forms[op, own] = self._form_by_mxnet(op, dict(own))
        return self._forms[op, own]

    def _numbers(self, op: str, key: str, value: str, inputs: int) -> None:
        try:
            numbers = [int(number) for number in _NUMBERS.findall(value)]
        except ValueError:  # thousands of digits
            numbers = [_LARGEST + 1]
        if any(abs(number) > _LARGEST for number in numbers) and key not in ("lstm_state_clip_min", "scalar"):
            self._refuse(f"{op} with numbers up to {_LARGEST} in {key}", value)
        if key in _POSITIVE and any(number < 1 for number in numbers):
            self._refuse(f"{op} with {key} of at least 1", value)
        if op in ("Reshape", "reshape") and _SPLIT_BY_0.search(value):
            self._refuse(f"{op} that splits no axis into 0", value)
        if key in _COUNTS and any(number > _MANY for number in numbers):
            self._refuse(f"{op} with {key} of at most {_MANY}", value)
        if key == "num_args" and numbers != [inputs]:
            self._refuse(f"{op} with num_args {inputs}, as it has inputs", value)

    def _form_by_mxnet(self, op: str, attrs: Dict[str, str]) -> _Form:
        """Let MXNet make the operator alone, with variables for its inputs, and count both."""
        try:
            handle = ctypes.c_void_p()
            check_call(_LIB.NNGetOpHandle(c_str(op), ctypes.byref(handle)))
            make = mx.symbol._internal._symbol_creator
            alone = make(handle.value, (), {}, list(attrs), list(attrs.values()), "alone", False, False)
            inputs, states = len(alone.list_inputs()), len(alone.list_auxiliary_states())
            return _Form(inputs, states, len(alone.get_internals().list_outputs()) - inputs)
        except mx.MXNetError as error:
            text = f"MXNet refuses {op} {attrs!s:.200}: {_last_line(error)}"
            raise CheckpointError(f"{self._path} is damaged: {self._where}: {text}") from error

    def _entry(self, entry: Any, before: int) -> List[int]:
        """Check a reference: the number of an earlier node, and the number of an output that it has."""
        sound = isinstance(entry, list) and len(entry) in (2, 3) and all(map(_is_index, entry))
        if not sound or entry[0] >= before or entry[1] >= self._outputs[entry[0]]:
            self._refuse(f"[number of a node below {before}, number of an output it has, version]", entry)
        return list(entry)

    def _dict(self, value: Any, fields: Tuple[str, ...]) -> Dict[str, Any]:
        if not isinstance(value, dict) or not set(value) <= set(fields):
            self._refuse(f"a dict of {', '.join(fields)}", list(value) if isinstance(value, dict) else value)
        return dict(value)

    def _list(self, value: Any, what: str, least: int = 1) -> List[Any]:
        if not isinstance(value, list) or len(value) < least:
            self._refuse(f"a list of {what}", value)
        return list(value)

    def _refuse(self, expected: str, received: Any) -> NoReturn:
        text = f"expected {expected}; received {received!s:.200}"
        raise CheckpointError(f"{self._path} is damaged or no graph of MXNet's: {self._where}: {text}")


def _is_index(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _LARGEST


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and "\0" not in value and len(value) < _MANY and value.isprintable()
