"""Randomness as a function of (seed, epoch, update), so that a run can be resumed exactly."""

import json
from typing import Any, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from mxkit.core.blocks import blocks_by_path
from mxkit.core.seeding import seed_all
from mxkit.data.dataset_loader import DatasetLoader
from mxkit.data.order import EpochOrder
from mxkit.runtime.operators import operators_in
import mxnet as mx
from mxnet import gluon
import numpy as np

# MXNet's generator can be seeded, which costs about 1.1 ms, but its state cannot be read (T67): a run can go on
# exactly from where it is seeded, and from nowhere else.
RESEED_EVERY = 16

# Names in lower case, and attributes.
Operators = List[Tuple[str, Mapping[str, str]]]

_RANDOM = ("random", "sample", "shuffle", "uniform", "normal", "bernoulli", "multinomial", "custom")


class Position(NamedTuple):
    """Position of a stopped run in an epoch.

    Attributes:
        batches: Batches it had read.
        updates: Updates it had done.
        seeded: Batches it had read at each 16th update, when the generators were seeded: what is skipped is read
            with the same numbers, because a shuffling generator may carry some of it over.
        samples: Samples of those batches, or None where nobody knows.
    """

    batches: int = 0
    updates: int = 0
    seeded: Sequence[int] = ()
    samples: Optional[int] = None


class Grid:
    """The updates of an epoch at which Python's, NumPy's and MXNet's generators are seeded anew.

    They are its start and, if something draws random numbers, every 16th update.

    Args:
        seed: Whole number that decides all. None leaves the generators alone.
        epoch: From 0.

    Attributes:
        draws: Whether the training draws numbers; to be set when that is known.
        seeds: Whether there is a seed.
    """

    def __init__(self, seed: Optional[int], epoch: int) -> None:
        self._seed, self._epoch = seed, epoch
        self.draws = True
        self.seeds = seed is not None

    def reseed(self, updates: int) -> None:
        """Seed the generators if `updates`, done in this epoch, is on the grid; call it before a batch is read."""
        if self._seed is not None and (updates == 0 or self.draws) and updates % RESEED_EVERY == 0:
            key = [self._seed % 2**64, self._epoch, updates]
            seed_all(int(np.random.SeedSequence(key).generate_state(1)[0]))


def draws_random_numbers(net: Any, loss: Any, data: Any, inputs: int) -> bool:
    """Whether a training may draw random numbers; what cannot be looked into is taken to draw some.

    Args:
        net: Looked into only where loss and data draw nothing.
        loss: The loss; one that is not MXNet's may do anything.
        data: An mxkit loader over arrays, a list and a DataIter over arrays draw nothing while they are read.
        inputs: How many arrays the net is called with.
    """
    quiet = isinstance(data, (EpochOrder, list, tuple, mx.io.NDArrayIter)) and not reads_user_code(data)
    # a Block's own forward is not called with symbols: it was not written for that
    if not type(loss).__module__.startswith((gluon.loss.__name__, "mxkit.")) or not quiet:
        return True
    operators = operators_of(net, inputs)
    return operators is None or any(_random_operator(name, attributes) for name, attributes in operators)


def reads_user_code(data: Any) -> bool:
    """Whether code of the user's makes the batches of an mxkit loader."""
    return isinstance(data, DatasetLoader) or getattr(data, "transform", None) is not None


def _opaque(block: Any) -> bool:
    return not isinstance(block, gluon.HybridBlock) and not type(block).__module__.startswith("mxnet.")


def operators_of(net: Any, inputs: int) -> Optional[Operators]:
    """Names in lower case and arguments of the operators that a net calls; None where it cannot be looked into.

    Args:
        net: Called with symbols, which plain Blocks mostly do not allow.
        inputs: How many arrays it is called with.
    """
    if any(_opaque(block) for _, block in blocks_by_path(net)):
        return None
    try:
        output = net(*[mx.sym.var(f"data{number}") for number in range(inputs)])
        flat, _ = gluon.block._flatten(output, "output")
        graph = json.loads(mx.sym.Group(flat).tojson())
    except Exception:  # a user's code may fail in any way when it is called with symbols
        return None
    return [(name.lower(), attributes) for name, attributes in operators_in(graph)]


def _random_operator(name: str, attributes: Mapping[str, str]) -> bool:
    if name in ("dropout", "rnn"):
        return float(attributes.get("p", 0.5 if name == "dropout" else 0)) > 0
    if name == "leakyrelu":
        return attributes.get("act_type") == "rrelu"
    return any(word in name for word in _RANDOM)
