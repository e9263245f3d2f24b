"""Copies of weights that can be put back, in the net and in its Trainer's kvstore."""

from typing import Any, Dict, List, Mapping, Optional

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
        first = {id(parameter): path for path, parameter in reversed(list(parameters.items()))}
        self._parameters = {
            path: parameter
            for path, parameter in parameters.items()
            if parameter._data is not None and (first[id(parameter)] == path if arrays is None else path in arrays)
        }
        self.arrays: Dict[str, List[Any]] = (
            {
                # never as_in_context: on the CPU it returns the array itself
                path: [array.copyto(mx.cpu()) if on_host else array.copy() for array in parameter._data]
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
            for array, copy in zip(parameter._data, self.arrays[path]):
                copy.copyto(array)
        trainers = {id(one): one for one in [trainer, *(one._trainer for one in self._parameters.values())] if one}
        for one in trainers.values():
            push_values(one, {id(parameter) for parameter in self._parameters.values()})

    def __enter__(self) -> "HeldWeights":
        return self

    def __exit__(self, *error: Any) -> None:
        self.put_back()
