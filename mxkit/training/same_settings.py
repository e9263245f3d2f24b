"""Facts that the workers of a job compare before they train together."""

from typing import Any, Dict

from mxkit.data.source import source_of
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
    source = source_of(data)
    facts = {"class": source.name, **source.settings, "number of batches": source.batches}
    plain = (type(None), bool, int, float, str)
    return {f"{key} of {name}{SAME_DATA}": value for key, value in facts.items() if isinstance(value, plain)}
