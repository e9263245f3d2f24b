"""Operators of transformers and of d2l's attention: forward and backward beside their siblings and a copy.

Each operator is a graph of its own, bound as `fit` binds a net's; ns for each number of its output (of its input,
where it sums), the least of ten in each round. `copy` copies as many numbers: the memory's speed. Ratios are against
it. The ways of a case take turns. `MXKIT_OPENBLAS` decides for all.

Siblings compute the same to rounding: `fast` is what `mxkit.nets.hybridize(net, fast=True)` makes of the operator,
others are what a net may call in its place. Bar: LayerNorm's fast backward pass takes at most 4 x its forward pass.
"""

from contextlib import ExitStack
from functools import lru_cache, partial
import time
from types import SimpleNamespace
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Tuple

import mxkit  # noqa: F401 before mxnet
from mxkit.nets.hybridizing import fast_norm
from mxkit.runtime.graphs import faster_graph
import mxnet as mx
import numpy as np

from benchmarks.harness import Child, Row, mxnet_threads, rows_of, take_turns
from benchmarks.peers import thread_variables, threads_text

TITLE = "Operators beside their siblings"
S, X = mx.sym, mx.sym.var("x")
WIDE = (1024, 512)


class Case(NamedTuple):
    """Ways to compute the same.

    Attributes:
        ways: A function of the variables `x` and others to a graph, by name.
        shapes: Of the variables.
        highest: Of variables of whole numbers, without a gradient: one more than the largest.
    """

    ways: Dict[str, Callable[..., Any]]
    shapes: Dict[str, Tuple[int, ...]]
    highest: Dict[str, int] = {}


def faster(function: Callable[..., Any]) -> Dict[str, Callable[..., Any]]:
    return {"MXNet's": function, "fast": lambda *given: faster_graph(function(*given))}


def norm(x: Any, gamma: Any, beta: Any) -> Any:
    return fast_norm(SimpleNamespace(_epsilon=1e-5), (-1, 1, 0), S, x, gamma, beta)


def masked(x: Any, lengths: Any) -> Any:
    return S.softmax(S.SequenceMask(x, lengths, use_sequence_length=True, value=-1e6, axis=1))


def norm_case(width: int) -> Case:
    shapes = {"x": (8, 128, width), "gamma": (width,), "beta": (width,)}
    return Case({"LayerNorm": S.LayerNorm, "fast": norm}, shapes)


CASES: Dict[str, Case] = {
    "LayerNorm, 1024 x 128": norm_case(128),
    "LayerNorm, 1024 x 768": norm_case(768),
    "GELU": Case(
        {
            "erf": lambda x: 0.5 * x * (1 + S.erf(x * 0.5**0.5)),
            "nn.GELU": partial(S.LeakyReLU, act_type="gelu"),
        },
        {"x": WIDE},
    ),
    "tanh": Case(faster(S.tanh), {"x": WIDE}),
    "sigmoid": Case(faster(S.sigmoid), {"x": WIDE}),
    "mean over axis 1, 16 x 64 x 128": Case(faster(partial(S.mean, axis=1)), {"x": (16, 64, 128)}),
    "softmax, 64 x 64 x 64": Case({"softmax": S.softmax, "log_softmax": S.log_softmax}, {"x": (64, 64, 64)}),
    "masked softmax, 4096 x 64": Case(
        {"SequenceMask, softmax": masked, "softmax(use_length=True)": partial(S.softmax, use_length=True)},
        {"x": (4096, 64), "length": (4096,)},
        {"length": 65},
    ),
    "scores, batch_dot 64 x 64 x 32 x 64": Case(
        {"batch_dot": partial(S.batch_dot, transpose_b=True)}, {"x": (64, 64, 32), "y": (64, 64, 32)}
    ),
    "mixing, batch_dot 64 x 64 x 64 x 32": Case({"batch_dot": S.batch_dot}, {"x": (64, 64, 64), "y": (64, 64, 32)}),
    "product 1024 x 128 x 512": Case(
        {
            "dot": partial(S.dot, transpose_b=True),
            "FullyConnected": partial(S.FullyConnected, no_bias=True, num_hidden=512),
        },
        {"x": (1024, 128), "y": (512, 128)},
    ),
    "heads, 16 x 64 x 4 x 32": Case(
        {"transpose": partial(S.transpose, axes=(0, 2, 1, 3)), "SwapAxis": partial(S.SwapAxis, dim1=1, dim2=2)},
        {"x": (16, 64, 4, 32)},
    ),
    "Embedding, 1024 of 5000 x 128": Case(
        {
            "Embedding": lambda x, weight: S.Embedding(x, weight, input_dim=5000, output_dim=128),
            "take": lambda x, weight: S.take(weight, x),
        },
        {"x": (1024,), "weight": (5000, 128)},
        {"x": 5000},
    ),
    "sum of three": Case(
        {"x + y + z": lambda x, y, z: x + y + z, "add_n": S.add_n}, dict.fromkeys(("x", "y", "z"), WIDE)
    ),
    "Dropout": Case({"Dropout": partial(S.Dropout, p=0.1)}, {"x": WIDE}),
}


# What NumPy calls for a case, with its own OpenBLAS and as many threads.
PRODUCTS: Dict[str, Callable[..., Any]] = {
    "scores, batch_dot 64 x 64 x 32 x 64": lambda x, y: x @ y.transpose(0, 2, 1),
    "mixing, batch_dot 64 x 64 x 64 x 32": np.matmul,
    "product 1024 x 128 x 512": lambda x, y: x @ y.T,
}


def run(quick: bool) -> Iterator[Row]:
    counts = sorted({1, int(thread_variables()["OMP_NUM_THREADS"])})
    with ExitStack() as stack:
        fusion = {"MXNET_SUBGRAPH_BACKEND": "NONE", "MXNET_SUBGRAPH_VERBOSE": "0"}  # off, as in training
        given = {number: {**mxnet_threads(number), "OPENBLAS_NUM_THREADS": str(number), **fusion} for number in counts}
        children = {number: stack.enter_context(Child(variables)) for number, variables in given.items()}
        for name, case in CASES.items():
            for number, child in children.items():
                yield from _rows(f"{name}, {threads_text(number)}", name, case, child, 2 if quick else 9)


def _rows(title: str, name: str, case: Case, child: Child, rounds: int) -> List[Row]:
    ways = {"copy": partial(child.ask, "benchmarks.operators:seconds", name=name, way="copy", backward=False)}
    for way in case.ways:
        for backward in (False, True):
            key = f"{way}, {'backward' if backward else 'forward'}"
            ways[key] = partial(child.ask, "benchmarks.operators:seconds", name=name, way=way, backward=backward)
    if name in PRODUCTS:
        ways["NumPy, forward"] = partial(child.ask, "benchmarks.operators:numpy_seconds", name=name)
    taken = take_turns(ways, rounds=rounds)
    rows = list(rows_of(title, taken, against="copy", scale=1e9 / numbers(name), unit="ns/number"))
    if "LayerNorm" in case.ways:
        both = {way: taken[way] for way in ("fast, forward", "fast, backward")}
        beside = rows_of(
            f"{title}: beside its forward pass", both, against="fast, forward", scale=1e9 / numbers(name),
            unit="ns/number", bars={"fast, backward": 4.0},
        )  # fmt: skip
        rows.append(beside[-1])
    return rows


@lru_cache(maxsize=None)
def numbers(name: str) -> int:
    """Numbers of the output, or of the input where it has more."""
    case = CASES[name]
    graph = next(iter(case.ways.values()))(*map(S.var, case.shapes))
    sizes = [np.prod(graph.infer_shape(**case.shapes)[1][0])]
    return int(max(sizes + [np.prod(case.shapes["x"])] * ("x" not in case.highest)))


@lru_cache(maxsize=None)
def executor_of(name: str, way: str) -> Tuple[Any, List[Any]]:
    """A bound graph and the gradient of its output."""
    case = CASES[name]
    if way == "copy":
        graph, shapes, highest = S.identity(X), {"x": (numbers(name),)}, {}
    else:
        graph, shapes, highest = case.ways[way](*map(S.var, case.shapes)), case.shapes, case.highest
    rng = np.random.default_rng(0)
    values = {
        one: mx.nd.array(rng.integers(1, highest[one], shape), dtype="int32")
        if one in highest
        else mx.nd.array(rng.normal(0, 1, shape))
        for one, shape in shapes.items()
    }
    gradients = {one: mx.nd.zeros(shape) for one, shape in shapes.items() if one not in highest}
    requests = {one: "write" if one in gradients else "null" for one in values}
    bound = graph.bind(mx.cpu(), values, args_grad=gradients, grad_req=requests)
    head = [mx.nd.ones(output.shape) for output in bound.forward(is_train=True)[:1]]
    return bound, head


def seconds(name: str, way: str, backward: bool) -> float:
    """Seconds of a pass: the least of ten means of some 1 ms, so that other programs count little."""
    bound, head = executor_of(name, way)
    call = partial(bound.backward, head) if backward else partial(bound.forward, is_train=True)
    return least(call, numbers(name))


def numpy_seconds(name: str) -> float:
    """As `seconds`, of NumPy's product."""
    rng = np.random.default_rng(0)
    arrays = [rng.normal(0, 1, shape).astype("float32") for shape in CASES[name].shapes.values()]
    return least(partial(PRODUCTS[name], *arrays), numbers(name))


def least(call: Callable[[], Any], size: int) -> float:
    calls, taken = max(1, 300_000 // size), []
    for _ in range(11):
        begun = time.perf_counter()
        for _ in range(calls):
            call()
        mx.nd.waitall()
        taken.append((time.perf_counter() - begun) / calls)
    return min(taken[1:])
