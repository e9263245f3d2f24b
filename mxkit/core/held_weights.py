"""Copies of weights that can be put back, in the net and in its Trainer's kvstore."""

from typing import Any, Dict, List, Mapping, Optional

from mxkit.core.blocks import distinct
from mxkit.core.replicas import trainer_of, values_of
from mxkit.core.trainers import push_values
import mxnet as mx


class HeldWeights:
    """Copies of parameters' values, on every device; put back by `put_back`, or at the end of a `with` block.

    Args:
        parameters: By path; those without values are left out. A shared parameter is held once, by its first path.
        arrays: Copies made earlier, by path. None copies the values as they are now, and waits for nothing.
        on_host: Copy to the CPU. False copies on each device.

    Attributes:
        arrays: The copies by path, one for each device.
    """

    def __init__(
        self,
        parameters: Mapping[str, Any],
        arrays: Optional[Mapping[str, List[Any]]] = None,
        *,
        on_host: bool = False,
    ) -> None:
        chosen = (
            distinct(parameters)
            if arrays is None
            else {path: parameters[path] for path in parameters if path in arrays}
        )
        self._parameters = {path: one for path, one in chosen.items() if values_of(one) is not None}
        self.arrays: Dict[str, List[Any]] = (
            {
                # never as_in_context: on the CPU it returns the array itself
                path: [array.copyto(mx.cpu()) if on_host else array.copy() for array in values_of(parameter) or ()]
                for path, parameter in self._parameters.items()
            }
            if arrays is None
            else dict(arrays)
        )

    def put_back(self, trainer: Any = None) -> None:
        """Put the values back.

        Args:
            trainer: A Trainer whose kvstore gets them too, beside the Trainers that the parameters belong to.
        """
        for path, parameter in self._parameters.items():
            for array, copy in zip(values_of(parameter) or (), self.arrays[path]):
                copy.copyto(array)
        trainers = {id(one): one for one in [trainer, *(trainer_of(one) for one in self._parameters.values())] if one}
        for one in trainers.values():
            push_values(one, {id(parameter) for parameter in self._parameters.values()})

    def __enter__(self) -> "HeldWeights":
        return self

    def __exit__(self, *error: Any) -> None:
        self.put_back()
