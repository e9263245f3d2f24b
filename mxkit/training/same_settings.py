"""Facts that the workers of a job compare before they train together."""

from typing import Any, Dict

from mxkit.core.blocks import loader_parts
from mxkit.data.fingerprint import fingerprint
from mxkit.storage.optimizer_state import optimizer_numbers

# End of the names of facts about data, for messages.
SAME_DATA = (
    " (all workers must get the same data in the same order, whole and not cut up by rank: fit gives each its part)"
)


def facts_of_optimizer(optimizer: Any) -> Dict[str, Any]:
    """Class and settings of an optimizer."""
    numbers = {f"{name} of the optimizer": value for name, value in optimizer_numbers(optimizer).items()}
    scheduler = optimizer.lr_scheduler
    return {
        "the optimizer": type(optimizer).__name__,
        **{name: value for name, value in numbers.items() if name[0] != "_"},
        "lr_scheduler of the optimizer": None if scheduler is None else type(scheduler).__name__,
    }


def facts_of_data(name: str, data: Any) -> Dict[str, Any]:
    """Facts that decide the batches, as far as they are known without reading all batches."""
    parts = loader_parts(data)
    facts: Dict[str, Any] = {"class": type(data).__name__}
    if parts is not None:
        facts.update({"batch_size": parts.batch_size, "number of samples": len(parts.dataset)})
        facts["sampler"] = type(parts.sampler).__name__
    else:
        facts["number of samples"] = getattr(data, "size", getattr(data, "num_data", None))
        facts.update((key, getattr(data, key, None)) for key in ("batch_size", "shuffle", "drop_last", "balance"))
    if hasattr(data, "__len__"):
        facts["number of batches"] = len(data)
    facts["digest of the arrays"] = fingerprint(data)
    plain = (type(None), bool, int, float, str)
    return {f"{key} of {name}{SAME_DATA}": value for key, value in facts.items() if isinstance(value, plain)}
