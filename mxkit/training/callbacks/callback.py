"""The base class of callbacks, functions as hooks, and the check of the list that `fit` receives."""

from contextlib import nullcontext
from typing import Any, Callable, ContextManager, Dict, Iterable, List, Mapping, Optional

from mxkit.errors import UnknownNameError, nearest
from mxkit.training.history import Row
from mxkit.training.ledger import Update
from mxkit.training.state import FitState

_HOOKS = ("on_fit_begin", "on_update", "around_validation", "on_epoch", "on_fit_end")

# Names of other frameworks for the hooks.
_ALIASES = {
    "on_fit_begin": ("on_train_begin", "on_train_start", "on_fit_start"),
    "on_update": ("on_batch_end", "on_train_batch_end", "on_step_end", "on_iteration_end", "on_update_end"),
    "on_epoch": ("on_epoch_end", "on_train_epoch_end", "on_validation_end", "on_validation_epoch_end"),
    "on_fit_end": ("on_train_end", "on_fit_finish"),
    "around_validation": ("on_validation_begin", "on_validation_start"),
}


class Callback:
    """Base class of callbacks; `fit` calls them in the order of its list.

    ```
    on_fit_begin
    for each epoch:
        on_update            after each optimizer update
        around_validation    a context that validation runs in
        on_epoch             after validation, with a copy of the row that was added to the history
    on_fit_end               also after an error, which it receives
    ```

    `fit` refuses other methods whose names begin with `on_` or `around_` before training: nothing would call them.
    With several workers each calls its own callbacks. All see the same rows and updates.

    Attributes:
        writes: Whether it only writes files or prints, which of several workers the first one does alone.
        resumed: Whether this `fit` has restored the callback's state from a checkpoint, known in `on_fit_begin`.
    """

    writes: bool = False
    resumed: bool = False

    def state_dict(self) -> Dict[str, Any]:
        """Values that a resumed run must restore, for JSON."""
        return {}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Restore the result of the stopped run's `state_dict`; called before `on_fit_begin`."""

    def state_arrays(self) -> Dict[str, Any]:
        """Arrays of either kind that a resumed run must restore, by name."""
        return {}

    def load_state_arrays(self, arrays: Mapping[str, Any]) -> None:
        """Restore the stopped run's `state_arrays`, in the net's kind of arrays; called before `on_fit_begin`."""

    def on_fit_begin(self, state: FitState) -> None:
        """Called once, before the first batch is read."""

    def on_update(self, state: FitState, update: Update) -> None:
        """Called after each update. Reading `update.loss` waits for the device."""

    def around_validation(self, state: FitState) -> ContextManager[Any]:
        """Return a context for validation, for example with other weights; entered in list order, left in reverse."""
        return nullcontext()

    def on_epoch(self, state: FitState, row: Row) -> None:
        """Called after each epoch and its validation.

        All callbacks get one copy of the row: later ones of the list see what is written there, and the history does
        not. Write a number for the history into `state.history[-1]`.
        """

    def on_fit_end(self, state: FitState, error: Optional[BaseException]) -> None:
        """Called once at the end; `error` is the exception that ended `fit`, or None."""


def check_callbacks(callbacks: Any) -> List[Callback]:
    """Return the callbacks as a list.

    Raises:
        TypeError: `callbacks` is no list, or holds an object that is no `Callback`.
        UnknownNameError: A callback has a method named like a hook that `fit` never calls.
    """
    if isinstance(callbacks, Callback) or not isinstance(callbacks, Iterable):
        raise TypeError(f"fit: callbacks: expected a list; received {type(callbacks).__name__}. Pass callbacks=[...]")
    checked = list(callbacks)
    for callback in checked:
        if isinstance(callback, type):
            name = callback.__name__
            raise TypeError(f"fit: callbacks: received the class {name}. Pass an object: {name}(...)")
        if not isinstance(callback, Callback):
            kind, derive = type(callback).__name__, "Derive its class from it"
            way = "Pass mxkit.callbacks.LambdaCallback(on_epoch=...)" if callable(callback) else derive
            raise TypeError(f"fit: callbacks: expected objects of mxkit.Callback; received {kind}. {way}")
        for name in dir(callback):
            if name.startswith(("on_", "around_")) and name not in _HOOKS and callable(getattr(callback, name)):
                raise _never_called(callback, name)
    return checked


def _never_called(callback: Callback, name: str) -> UnknownNameError:
    meant = next((f"did you mean {hook!r}?" for hook, others in _ALIASES.items() if name in others), "")
    return UnknownNameError(
        f"{type(callback).__name__} has a method {name!r}, which fit never calls: "
        f"{meant or nearest(name, _HOOKS) or f'give it another name, like _{name}.'} fit calls {', '.join(_HOOKS)}"
    )


class LambdaCallback(Callback):
    """Call functions as hooks, with the arguments of `Callback`'s methods.

    Args:
        on_fit_begin: Called as `on_fit_begin(state)`.
        on_update: Called as `on_update(state, update)`.
        on_epoch: Called as `on_epoch(state, row)`.
        on_fit_end: Called as `on_fit_end(state, error)`.

    Raises:
        TypeError: One of them cannot be called.

    >>> shout = LambdaCallback(on_epoch=lambda state, row: print(row["epoch"], row["updates"]))
    >>> net = mxkit.models.softmax_regression(2); mxkit.initialize(net)
    >>> data = [(np.ones((4, 3)), np.zeros(4))] * 2
    >>> history = mxkit.fit(net, data, loss="softmax_ce", trainer="sgd", epochs=2, callbacks=[shout], progress=False)
    1 2
    2 4
    """

    def __init__(
        self,
        *,
        on_fit_begin: Optional[Callable[[FitState], Any]] = None,
        on_update: Optional[Callable[[FitState, Update], Any]] = None,
        on_epoch: Optional[Callable[[FitState, Row], Any]] = None,
        on_fit_end: Optional[Callable[[FitState, Optional[BaseException]], Any]] = None,
    ) -> None:
        names = ("on_fit_begin", "on_update", "on_epoch", "on_fit_end")
        for name, function in zip(names, (on_fit_begin, on_update, on_epoch, on_fit_end)):
            if function is not None and not callable(function):
                raise TypeError(f"LambdaCallback: {name}: expected a function or None; received {function!r:.100}")
            if function is not None:
                setattr(self, name, function)
