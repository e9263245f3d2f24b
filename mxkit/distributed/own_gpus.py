"""Divides the GPUs of a machine among its workers."""

from typing import List, Sequence

from mxkit.core.device import set_own_gpus, usable_gpus
from mxkit.core.system import LOG
from mxkit.distributed.member import Member


def take_own_gpus(member: Member, rank: int) -> None:
    """Limit `mxkit.devices` to this worker's part of the GPUs that several workers see; all workers call it.

    The GPUs' identities decide, not local ranks: Kubernetes and torchrun's variables alone give none, and a worker that
    sees only its own GPU by `CUDA_VISIBLE_DEVICES` must not use it as an offset.
    """
    gpus = usable_gpus()
    seen: List[List[str]] = member.gather("the GPUs", list(gpus.values()))
    numbers = list(gpus)
    own = [numbers[place] for place in own_places(seen, rank)]
    set_own_gpus(own)
    sharers = len(_sharers(seen, rank))
    if sharers > 1 and own:
        names = ", ".join(f"gpu({number})" for number in own)
        few = ", fewer than workers, and share them" if sharers > len(gpus) else ""
        text = 'mxkit: worker %d takes %s: %d workers see the same %d GPUs%s. devices="gpu:0" names others'
        LOG.warning(text, rank, names, sharers, len(gpus), few)


def own_places(seen: Sequence[Sequence[str]], rank: int) -> List[int]:
    """Positions of a worker's own GPUs among the GPUs that it sees.

    Workers that see the same GPUs get equal parts, and share GPUs if there are more workers than GPUs. A worker that
    sees other GPUs than the others takes all that it sees: SLURM or `CUDA_VISIBLE_DEVICES` has divided them.

    Args:
        seen: Identities of the GPUs that each worker sees, by rank.
        rank: The worker.

    >>> [own_places([["a", "b", "c", "d"]] * 2, rank) for rank in (0, 1)]
    [[0, 1], [2, 3]]
    >>> [own_places([["a", "b"], ["c", "d"], ["a", "b"], ["d"]], rank) for rank in range(4)]
    [[0], [0, 1], [1], [0]]
    """
    sharers = _sharers(seen, rank)
    order = seen[sharers[0]]  # CUDA_VISIBLE_DEVICES=1,0 shows another worker the same GPUs in another order
    each = max(1, len(order) // len(sharers))
    begin = sharers.index(rank) * each % max(1, len(order))
    return sorted(seen[rank].index(gpu) for gpu in order[begin : begin + each])


def _sharers(seen: Sequence[Sequence[str]], rank: int) -> List[int]:
    """Workers that see the same GPUs as this one."""
    return [other for other, gpus in enumerate(seen) if set(gpus) == set(seen[rank])]
