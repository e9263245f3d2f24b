"""Where an update of a transformer and of a recurrent net goes: operators of MXNet beside those of PyTorch.

Nets and batches are those of the question on transformers. Each side runs under its own profiler: MXNet's with one
operator at a time, `torch.profiler` with each operator's own time. Operators that do one job are added up:

- dense layers: products with weights and their gradients. attention: products of queries, keys and values, softmax;
  PyTorch has one operator for it. norms: of MXNet the products and sums of `fast`.
- copies: transposes, reshapes, joined parameters. rest: sums of branches and of gradients, checks for NaN.

Ratios are MXNet's time / PyTorch's with as many threads. A profiled update takes longer than the question on
transformers says.
"""

from collections import Counter
from contextlib import ExitStack
import re
from statistics import median
from typing import Dict, Iterator, List

from mxkit.profiling.operator_times import Operators

from benchmarks import attention
from benchmarks.harness import Child, Row, mxnet_threads
from benchmarks.peers import pytorch, thread_variables, threads_text

BULK = "MXNET_EXEC_BULK_EXEC_TRAIN"  # where it is on, MXNet's profiler sees segments of graphs
TITLE = "Parts of an update beside PyTorch's"
CASES = {"encoder": 10, "wide encoder": 3, "lstm": 4}
# Names of operators; the first part that is found counts.
PARTS = {
    "dense layers": r"FullyConnected|aten::(addmm|mm|linear)$",
    "attention": r"batch_dot|(^|backward_)softmax$|scaled_dot_product|aten::(bmm|_softmax)",
    "norms": r"layer_norm|dot$|square|rsqrt|broadcast_(div|mul)|elemwise_(mul|sub)|backward_(mul|sub)$",
    "activations": r"Activation|threshold|clamp_min",
    "recurrent layers": r"RNN|rnn",
    "embedding": r"(?i)embedding|index_select",
    "loss": r"log_softmax|pick|nll_loss",
    "optimizer": r"adam|Optimizer|aten::(sqrt|div|addcdiv_|lerp_|addcmul_)$",
    "copies": r"(?i)transpose|reshape|swapaxis|concat|slice|stack|cat$|copy|zero|fill_|clone",
}


def run(quick: bool) -> Iterator[Row]:
    variables, rounds = thread_variables(), 2 if quick else 7
    counts = sorted({1, int(variables["OMP_NUM_THREADS"])})
    with ExitStack() as stack:
        peer, missing = pytorch(stack, variables, "ms/update")
        yield from missing
        ours = {number: stack.enter_context(Child({**mxnet_threads(number), BULK: "0"})) for number in counts}
        for name, updates in CASES.items():
            case = attention.CASES[name]._replace(updates=2 if quick else updates)
            for number in counts:
                taken: Dict[str, List[Dict[str, float]]] = {"MXNet": [], "PyTorch": []}
                for _ in range(rounds):
                    own = ours[number].ask("benchmarks.parts:profiled", name=name, updates=case.updates)
                    taken["MXNet"].append(by_part(own))
                    if peer is not None:
                        asked = {**case._asdict(), "name": name, "threads": number}
                        found = peer.ask("benchmarks.peers_torch:profiled_sequence", **asked)
                        taken["PyTorch"].append(by_part(found))
                yield from _rows(f"{name}, {threads_text(number)}", taken)


def _rows(case: str, taken: Dict[str, List[Dict[str, float]]]) -> Iterator[Row]:
    for part in [*PARTS, "rest"]:
        sides = {way: [one.get(part, 0.0) for one in rounds] for way, rounds in taken.items() if rounds}
        if not any(map(sum, sides.values())):
            continue
        for way, values in sides.items():
            row = Row(f"{case}: {part}", way, median(values), "ms/update", min(values), max(values))
            if way == "MXNet" and all(sides.get("PyTorch", [0])):
                ratios = [one / other for one, other in zip(values, sides["PyTorch"])]
                row = row._replace(
                    against="PyTorch", ratio=median(ratios), ratio_low=min(ratios), ratio_high=max(ratios)
                )  # fmt: skip
            yield row


def by_part(times: Dict[str, float]) -> Dict[str, float]:
    """The sum of each part.

    >>> by_part({"FullyConnected": 1.0, "_backward_FullyConnected": 2.0, "aten::add": 4.0})
    {'dense layers': 3.0, 'rest': 4.0}
    """
    sums: Dict[str, float] = Counter()
    for name, value in times.items():
        sums[next((part for part, names in PARTS.items() if re.search(names, name)), "rest")] += value
    return dict(sums)


def profiled(name: str, updates: int) -> Dict[str, float]:
    """Milliseconds an update of each operator, in a child."""
    fast = bool(attention.CASES[name].heads)
    attention.train(name, updates, fast)
    operators = Operators()
    with operators.recorded():
        attention.train(name, updates, fast)
    return {key: seconds / updates * 1e3 for key, (_, seconds) in operators.by_name().items()}
