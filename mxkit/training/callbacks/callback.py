"""Hooks into `fit`."""

from contextlib import nullcontext
from typing import Any, ContextManager, Dict, Iterable, List, Mapping, Optional

from mxkit.errors import UnknownNameError, nearest
from mxkit.training.history import Row
from mxkit.training.ledger import Update
from mxkit.training.state import FitState

_HOOKS = ("on_fit_begin", "on_update", "around_validation", "on_epoch", "on_fit_end")

# What other frameworks call them.
_ALIASES = {
    "on_fit_begin": ("on_train_begin", "on_train_start", "on_fit_start"),
    "on_update": ("on_batch_end", "on_train_batch_end", "on_step_end", "on_iteration_end", "on_update_end"),
    "on_epoch": ("on_epoch_end", "on_train_epoch_end", "on_validation_end", "on_validation_epoch_end"),
    "on_fit_end": ("on_train_end", "on_fit_finish"),
    "around_validation": ("on_validation_begin", "on_validation_start"),
}


class Callback:
    """Base of what `fit` calls, in the order of the list it is given.

    ```
    on_fit_begin
    for each epoch:
        on_update            after each optimizer update
        around_validation    a context that validation runs in
        on_epoch             after validation, with a copy of the row that was added to the history
    on_fit_end        also after an error, which it is given
    ```

    Before training, `fit` refuses a method of another name that begins with `on_` or `around_`: nothing would call it.
    """

    def state_dict(self) -> Dict[str, Any]:
        """What a resumed run must restore, as plain JSON values."""
        return {}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Take over what `state_dict` of the stopped run gave, before `on_fit_begin`."""

    def state_arrays(self) -> Dict[str, Any]:
        """NDArrays that a resumed run must restore, by name."""
        return {}

    def load_state_arrays(self, arrays: Mapping[str, Any]) -> None:
        """Take over what `state_arrays` of the stopped run gave, before `on_fit_begin`."""

    def on_fit_begin(self, state: FitState) -> None:
        """Called once, before the first batch is read."""

    def on_update(self, state: FitState, update: Update) -> None:
        """Called after each update. Reading `update.loss` waits for the device."""

    def around_validation(self, state: FitState) -> ContextManager[Any]:
        """Return what validation runs in, for example with other weights; entered in list order, left in reverse."""
        return nullcontext()

    def on_epoch(self, state: FitState, row: Row) -> None:
        """Called after each epoch and its validation."""

    def on_fit_end(self, state: FitState, error: Optional[BaseException]) -> None:
        """Called once at the end; `error` is what ended `fit`, or None."""


def check_callbacks(callbacks: Any) -> List[Callback]:
    """Return the callbacks as a list, each of which `fit` can call.

    Raises:
        TypeError: `callbacks` is no list, or holds something that is no `Callback`.
        UnknownNameError: One has a method named like a hook that `fit` never calls.
    """
    if isinstance(callbacks, Callback) or not isinstance(callbacks, Iterable):
        raise TypeError(f"fit: callbacks: expected a list; received {type(callbacks).__name__}. Pass callbacks=[...]")
    found = list(callbacks)
    for one in found:
        if isinstance(one, type):
            raise TypeError(f"fit: callbacks: received the class {one.__name__}. Pass an object: {one.__name__}(...)")
        if not isinstance(one, Callback):
            way = (
                ". Pass mxkit.callbacks.LambdaCallback(on_epoch=...)" if callable(one) else ". Derive its class from it"
            )
            raise TypeError(f"fit: callbacks: expected objects of mxkit.Callback; received {type(one).__name__}{way}")
        for name in dir(one):
            if name.startswith(("on_", "around_")) and name not in _HOOKS and callable(getattr(one, name)):
                raise _never_called(one, name)
    return found


def _never_called(callback: Callback, name: str) -> UnknownNameError:
    meant = next((f"did you mean {hook!r}?" for hook, others in _ALIASES.items() if name in others), "")
    return UnknownNameError(
        f"{type(callback).__name__} has a method {name!r}, which fit never calls: "
        f"{meant or nearest(name, _HOOKS) or 'give it another name, like _' + name + '.'} "
        f"Called are {', '.join(_HOOKS)}"
    )
