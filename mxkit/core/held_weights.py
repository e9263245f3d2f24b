"""Copies of weights, to restore them in the net and in its Trainer's kvstore."""

from typing import Any, Dict, List, Mapping, Optional

from mxkit.core.array_kind import copied, copy_into, copy_to_cpu
from mxkit.core.blocks import distinct
from mxkit.core.replicas import trainer_of, values_of
from mxkit.core.trainers import push_values


class HeldWeights:
    """Copies of parameters' values on every device; `put_back` or the end of a `with` block restores them.

    Args:
        parameters: Parameters by path. Parameters without values are ignored; a shared one is copied once.
        arrays: Earlier copies by path. None copies the current values, without a wait.
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
        if arrays is not None:
            chosen = {path: parameter for path, parameter in parameters.items() if path in arrays}
        else:
            chosen = distinct(parameters)
        self._parameters = {path: parameter for path, parameter in chosen.items() if values_of(parameter) is not None}
        if arrays is None:
            copy = copy_to_cpu if on_host else copied
            arrays = {path: list(map(copy, values_of(parameter) or ())) for path, parameter in self._parameters.items()}
        self.arrays: Dict[str, List[Any]] = dict(arrays)

    def put_back(self, trainer: Any = None) -> None:
        """Restore the values in the parameters and in the kvstores of the parameters' Trainers.

        Args:
            trainer: Another Trainer with a kvstore to restore.
        """
        for path, parameter in self._parameters.items():
            for array, copy in zip(values_of(parameter) or (), self.arrays[path]):
                copy_into(copy, array)
        trainers = {id(one): one for one in [trainer, *(trainer_of(one) for one in self._parameters.values())] if one}
        for one in trainers.values():
            push_values(one, {id(parameter) for parameter in self._parameters.values()})

    def __enter__(self) -> "HeldWeights":
        return self

    def __exit__(self, *error: Any) -> None:
        self.put_back()
