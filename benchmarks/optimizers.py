"""Nanoseconds a weight of an optimizer's update: MXNet's operators, `Trainer.update`, mxkit and PyTorch.

Parameters of 100 to 10 million float32 weights, as many as hold 2 million together, at least 1 and at most 90; one
thread, and one a core. All ways of a case take turns.

- an operator: prepared once and called, without MXNet's Python; "x 45" is 45 parameters a call.
- Trainer.update: Gluon's, with the stock optimizer.
- mxkit: what `Accumulator`, `updates` and `fit` call in its place, with the same bits: for SGD with momentum
  `sgd_mom_update` from 32,768 weights on, below it 4 parameters a call, below 1,000 weights 45, and so for SGD without
  momentum; for Adam, NAG and RMSProp the stock operator, prepared; for others `Trainer.update`.
- PyTorch: `torch.optim`, as it is and with `fused=True`; left out where .venv/peers has no PyTorch.

Not all operators have the bits of the stock optimizer: `sgd_update` differs from SGD's `multi_sgd_update` in the last
digit where there is a weight decay, and in the sign of zeros without one; `_multi_adamw_update` differs from
`adam_update`.
"""

from contextlib import ExitStack
from functools import lru_cache, partial
from itertools import chain
import time
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Tuple

import mxkit  # noqa: F401  before mxnet
from mxkit.core.prepared import OptimizerStep, PreparedCall
from mxkit.core.replicas import set_fresh
from mxkit.runtime.engine_settings import choose
from mxkit.runtime.machine import read_processors
import mxnet as mx
import numpy as np

from benchmarks.harness import Child, Row, rows_of, take_turns
from benchmarks.peers import pytorch, threads_text

TITLE = "Optimizers: time a weight"
SIZES = {False: (100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000), True: (100, 100_000)}
ROUNDS = {False: 5, True: 1}
QUICK = ("SGD, momentum", "Adam")
TRAINER, MXKIT = "Trainer.update", "mxkit"


class Optimizer(NamedTuple):
    """An optimizer: its arguments for MXNet, its operators with parameters a call, its class in PyTorch."""

    arguments: Dict[str, Any]
    operators: Tuple[Tuple[str, int], ...]
    torch: str
    torch_arguments: Dict[str, Any]


MOMENTUM = {"learning_rate": 1e-6, "momentum": 0.9}
PLAIN = {"learning_rate": 1e-6}
CASES = {
    "SGD, momentum": Optimizer(
        {"name": "sgd", **MOMENTUM},
        (
            ("sgd_mom_update", 1),
            ("multi_sgd_mom_update", 4),
            ("multi_sgd_mom_update", 45),
            ("preloaded_multi_sgd_mom_update", 45),
        ),
        "SGD",
        {"momentum": 0.9},
    ),
    "SGD": Optimizer(
        {"name": "sgd", **PLAIN}, (("sgd_update", 1), ("multi_sgd_update", 4), ("multi_sgd_update", 45)), "SGD", {}
    ),
    "Adam": Optimizer({"name": "adam", **PLAIN}, (("adam_update", 1), ("_multi_adamw_update", 45)), "Adam", {}),
    "NAG": Optimizer({"name": "nag", **MOMENTUM}, (("nag_mom_update", 1),), "SGD", {"momentum": 0.9, "nesterov": True}),
    "RMSProp": Optimizer({"name": "rmsprop", **PLAIN}, (("rmsprop_update", 1),), "RMSprop", {}),
    "AdaGrad": Optimizer({"name": "adagrad", **PLAIN}, (), "Adagrad", {}),
    "LAMB": Optimizer({"name": "lamb", **PLAIN}, (("_multi_lamb_update", 45),), "", {}),
}


def run(quick: bool) -> Iterator[Row]:
    for threads in [1] if quick else sorted({1, choose(read_processors(), {}).taken}):
        variables = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
        with ExitStack() as stack:
            ask = stack.enter_context(Child(variables)).ask
            torch, missing = pytorch(stack, variables, "ns/weight")
            yield from missing
            for name in QUICK if quick else CASES:
                optimizer = CASES[name]
                for size in SIZES[quick]:
                    ways = {way: partial(ask, "benchmarks.optimizers:timed", way=way) for way in (TRAINER, MXKIT)}
                    for operator, group in optimizer.operators:
                        way = f"{operator} x {group}" if group > 1 else operator
                        ways[way] = partial(ask, "benchmarks.optimizers:timed", way=operator, group=group)
                    for fused in (False, True) if torch and optimizer.torch else ():
                        if not fused or optimizer.torch in ("SGD", "Adam", "Adagrad"):
                            given = {"name": optimizer.torch, **optimizer.torch_arguments, "fused": fused}
                            way = "PyTorch, fused" if fused else "PyTorch"
                            ways[way] = partial(torch.ask, "benchmarks.peers_torch:timed_optimizer", arguments=given)
                    shape = {"size": size, "parameters": max(1, min(90, 2_000_000 // size))}
                    ways = {way: partial(_seconds, one, name, shape) for way, one in ways.items()}
                    weights = shape["size"] * shape["parameters"]
                    yield from rows_of(
                        f"{name}, {size:,} weights, {threads_text(threads)}",
                        take_turns(ways, rounds=ROUNDS[quick]), against=TRAINER, scale=1e9 / weights, unit="ns/weight",
                    )  # fmt: skip


def _seconds(ask: Callable[..., float], name: str, shape: Dict[str, int]) -> float:
    return ask(**shape) if "arguments" in ask.keywords else ask(case=name, **shape)  # type: ignore[attr-defined]


def timed(case: str, way: str, size: int, parameters: int, group: int = 1) -> float:
    """Seconds of an update of all parameters, the mean of some 0.05 s; in a child."""
    update, weights = built(case, way, size, parameters, group)
    passes = max(1, 5_000_000 // (size * parameters + 5_000 * parameters))
    seconds = 0.0
    for _ in range(passes):
        set_fresh(weights, True)  # as a backward pass does
        begun = time.perf_counter()
        update()
        mx.nd.waitall()
        seconds += time.perf_counter() - begun
    return seconds / passes


@lru_cache(maxsize=8)
def built(case: str, way: str, size: int, parameters: int, group: int) -> Tuple[Callable[[], Any], List[Any]]:
    """The update of parameters with gradients, and their weights."""
    arguments = dict(CASES[case].arguments)
    made = [mx.gluon.Parameter(f"p{number}", shape=(size,)) for number in range(parameters)]
    for parameter in made:
        parameter.initialize(mx.init.Normal(1))
        parameter.grad()[:] = 0.01
    weights = [parameter.data() for parameter in made]
    if way in (TRAINER, MXKIT):
        trainer = mx.gluon.Trainer(made, arguments.pop("name"), arguments, update_on_kvstore=False)
        trainer.allreduce_grads()
        return partial(trainer.update if way == TRAINER else OptimizerStep(trainer), 64), weights
    groups = [
        [[one.data(), one.grad()] for one in made[start : start + group]] for start in range(0, parameters, group)
    ]
    calls = [call_of(way, arrays, momentum=arguments.get("momentum")) for arrays in groups]
    return lambda: [call() for call in calls], weights


def call_of(operator: str, arrays: List[List[Any]], momentum: Any) -> PreparedCall:
    """A prepared call of an operator for a group of parameters, with new states."""
    states = 2 if "adam" in operator or "lamb" in operator else 0 if momentum is None and "rms" not in operator else 1
    arrays = [[*pair, *(mx.nd.ones(pair[0].shape) for _ in range(states))] for pair in arrays]
    inputs, count = list(chain.from_iterable(arrays)), len(arrays)
    attributes: Dict[str, Any] = {"rescale_grad": 1 / 64}
    if momentum is not None:
        attributes["momentum"] = momentum
    if "preloaded" in operator:
        inputs += [mx.nd.zeros(count), mx.nd.zeros(count)]
        attributes["num_weights"] = count
    elif "lamb" in operator:
        attributes.update(num_tensors=count, learning_rates=[1e-6] * count, wds=[0.0] * count, step_count=[1] * count)
    elif "multi" in operator:
        attributes.update(num_weights=count, lrs=[1e-6] * count, wds=[0.0] * count)
    else:
        attributes.update(lr=1e-6, wd=0.0)
    if "adamw" in operator:
        inputs.append(mx.nd.array(np.array([attributes.pop("rescale_grad")])))
        attributes["etas"] = [1.0] * count
    return PreparedCall(operator, inputs, [weight for weight, *_ in arrays], attributes)
