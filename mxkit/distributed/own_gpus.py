"""Gives each worker of a machine GPUs of its own."""

from typing import List, Sequence

from mxkit.core.device import set_own_gpus, usable_gpus
from mxkit.distributed.member import Member


def take_own_gpus(member: Member, rank: int) -> None:
    """Let `mxkit.devices` leave GPUs to the other workers that see the same ones; all workers call it."""
    gpus = usable_gpus()
    seen: List[List[str]] = member.gather("the GPUs", list(gpus.values()))
    numbers = list(gpus)
    set_own_gpus([numbers[place] for place in own_places(seen, rank)])


def own_places(seen: Sequence[Sequence[str]], rank: int) -> List[int]:
    """Places of a worker's own GPUs among those that it sees.

    Workers that see the same GPUs get equally many, and share them if there are fewer than workers. A worker that sees
    others than its neighbours has been given its own, by SLURM or `CUDA_VISIBLE_DEVICES`.

    Args:
        seen: Identities of the GPUs that each worker sees, by rank.
        rank: The worker.

    >>> [own_places([["a", "b", "c", "d"]] * 2, rank) for rank in (0, 1)]
    [[0, 1], [2, 3]]
    >>> [own_places([["a", "b"], ["c", "d"], ["a", "b"], ["d"]], rank) for rank in range(4)]
    [[0], [0, 1], [1], [0]]
    """
    own = list(seen[rank])
    sharers = [other for other, gpus in enumerate(seen) if set(gpus) == set(own)]
    each = max(1, len(own) // len(sharers))
    begin = sharers.index(rank) * each % max(1, len(own))
    return list(range(len(own)))[begin : begin + each]
