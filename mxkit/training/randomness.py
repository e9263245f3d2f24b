"""Makes randomness a function of (seed, epoch, update), and warns of a net on a GPU that cannot repeat its bits."""

import os
from typing import Any, Iterator, List, NamedTuple, Optional, Sequence
import warnings

from mxkit.core.arrays import call, of_kind
from mxkit.core.blocks import blocks_by_path, is_numpy_net
from mxkit.core.device import is_gpu
from mxkit.core.graph import Graph, Node
from mxkit.core.graphs import only_its_graph_runs, traced_graph
from mxkit.core.operators import draws_in_training, known, operators_that
from mxkit.core.seeding import seed_all
from mxkit.data.source import Source
from mxkit.errors import TrapWarning
from mxkit.runtime.engine_settings import EXACT, switches_off, warn_if_late
import mxnet as mx
from mxnet import gluon
import numpy as np

# MXNet's generator can be seeded, in about 1.1 ms, but its state cannot be read (T67): a run can be resumed exactly
# only from an update at which the generator is seeded.
RESEED_EVERY = 16


class Position(NamedTuple):
    """Position of a stopped run in an epoch.

    Attributes:
        batches: Number of batches that it had read.
        updates: Number of updates in this epoch.
        seeded: Number of batches read at each 16th update, when the generators were seeded. Skipped batches are read
            with the same random numbers, because a shuffling source may keep samples for later batches.
        samples: Number of samples in these batches, or None if unknown.
    """

    batches: int = 0
    updates: int = 0
    seeded: Sequence[int] = ()
    samples: Optional[int] = None


class Grid:
    """Seeds Python's, NumPy's and MXNet's generators at the start of an epoch and every 16 updates.

    If the training draws no random numbers, only the start is seeded.

    Args:
        seed: A whole number. None leaves the generators alone.
        epoch: Number of the epoch from 0.
        worker: Number of the worker. MXNet's generator, which draws dropout, has another seed on each; Python's and
            NumPy's, which shuffle, have the same on all.

    Attributes:
        draws: Whether the training draws random numbers; set later, when this is known.
        seeds: Whether there is a seed.
    """

    def __init__(self, seed: Optional[int], epoch: int, worker: int = 0) -> None:
        self._seed, self._epoch, self._worker = seed, epoch, worker
        self.draws = True
        self.seeds = seed is not None

    def reseed(self, updates: int) -> None:
        """Seed the generators if this number of updates is on the grid; call it before a batch is read."""
        if self._seed is not None and (updates == 0 or self.draws) and updates % RESEED_EVERY == 0:
            key = [self._seed % 2**64, self._epoch, updates]
            seed_all(int(np.random.SeedSequence(key).generate_state(1)[0]))
            if self._worker:
                mx.random.seed(int(np.random.SeedSequence([*key, self._worker]).generate_state(1)[0]))


def draws_random_numbers(net: Any, loss: Any, data: Source, inputs: int) -> bool:
    """Whether a training may draw random numbers; True if this cannot be inspected.

    Args:
        net: The net; inspected only if loss and data draw no random numbers.
        loss: The loss; a custom one may draw random numbers.
        data: The data.
        inputs: Number of input arrays of the net.
    """
    if not type(loss).__module__.startswith((gluon.loss.__name__, "mxkit.")) or not data.deterministic:
        return True
    operators = operators_of(net, inputs)
    return operators is None or any(map(draws_in_training, operators))


def operators_of(net: Any, inputs: int) -> Optional[List[Node]]:
    """The operators that a net calls; None if they cannot be found.

    Args:
        net: The net, called with symbols. A custom Block is not called: its forward was not written for symbols.
        inputs: Number of input arrays of the net.
    """
    if only_its_graph_runs(net):
        return list(Graph.of(traced_graph(net)[1]).operators())
    for _, block in blocks_by_path(net):
        if not isinstance(block, gluon.HybridBlock) and not type(block).__module__.startswith("mxnet."):
            return None
    try:
        numpy = is_numpy_net(net)
        output = call(net, [of_kind(mx.sym.var(f"data{number}"), numpy) for number in range(inputs)])
        flat, _ = gluon.block._flatten(output, "output")
        graph = Graph.of(flat)
    except Exception:  # of any type: custom code may refuse symbols
        return None
    return list(graph.operators())


# Variables that exclude the algorithms of cuDNN and cuBLAS with a random order of additions (T132), by the operators'
# fact.
_NEEDS = {
    "cudnn": ("MXNET_CUDNN_AUTOTUNE_DEFAULT", "MXNET_ENFORCE_DETERMINISM"),
    "cublas": ("CUBLAS_WORKSPACE_CONFIG",),
}


def warn_of_inexact(net: Any, inputs: int, devices: Sequence[Any]) -> None:
    """Warn if a seed or checkpoints promise equal bits, but a net on GPUs cannot give them.

    Args:
        net: The net.
        inputs: Number of input arrays of the net.
        devices: The devices of the net; CPUs need no warning.

    Warns:
        TrapWarning: Variables that operators of the net need are not set (T132), or no variable helps.
    """
    if not any(map(is_gpu, devices)):
        return
    warn_if_late(os.environ)
    operators = operators_of(net, inputs)
    names = operators_that(*_NEEDS)
    names = names if operators is None else names.intersection(one.operator for one in operators)
    kinds = sorted({known(name).kind for name in names})
    variables = {one for name in names for fact in known(name).facts for one in _NEEDS.get(fact, ())}
    needed = [f"{name}={value}" for name, value in switches_off().items() if name in variables]
    if needed:
        settings = " ".join(needed)
        cause = "operators that mxkit cannot inspect" if operators is None else ", ".join(kinds)
        text = f"on a GPU a seed and a resumed run give the same bits only with {settings} (because of {cause})"
        _warn(f"{text}. Start the program with {EXACT}=1, or mxkit train --exact, which set them; it is slower (T132)")
    never = sorted(set(_never_exact(operators or ())))
    if never:
        text = "on a GPU this net cannot give the same bits each time, with any settings"
        _warn(f"{text}: {'; '.join(never)}. Runs with one seed, and resumed runs, are only approximately equal")


def _never_exact(operators: Sequence[Node]) -> Iterator[str]:
    for node in operators:
        if "atomic" in known(node.operator).facts:
            yield f"the gradient of {node.operator.lower()} is summed in a random order (T132)"
        elif node.operator == "Embedding" and node.flag("sparse_grad"):
            yield "the sparse gradient of Embedding is summed in a random order (T132)"
        elif node.operator == "RNN" and node.real("p") > 0 and node.integer("num_layers") > 1:
            way = "stack layers of num_layers=1 and put Dropout between them"
            yield f"no seed reaches the dropout between recurrent layers: {way} (T125)"
        elif node.operator == "Dropout" and node.real("p") > 0 and not (node.flag("cudnn_off") or node.ints("axes")):
            yield "no seed reaches Dropout of an imported graph, or with cudnn_off=False (T125)"


def _warn(text: str) -> None:
    warnings.warn(text, TrapWarning, stacklevel=6)
