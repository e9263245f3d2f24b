"""The base class of callbacks, functions as hooks, and the check of the list that `fit` receives."""

from contextlib import nullcontext
from typing import Any, Callable, ContextManager, Dict, Iterable, List, Mapping, Optional

from mxkit.errors import UnknownNameError, nearest
from mxkit.training.history import Row
from mxkit.training.ledger import Update
from mxkit.training.state import FitState

Hook = Optional[Callable[..., Any]]
_HOOKS = ("on_fit_begin", "on_update", "around_validation", "on_epoch", "on_fit_end")


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
        if not isinstance(callback, Callback):
            text = f"expected objects of mxkit.Callback, not classes; received {callback!r:.100}"
            raise TypeError(f"fit: callbacks: {text}. For functions pass LambdaCallback(on_epoch=...)")
        for name in dir(callback):
            if name.startswith(("on_", "around_")) and name not in _HOOKS and callable(getattr(callback, name)):
                way = nearest(name, _HOOKS) or f"give it another name, like _{name}."
                text = f"{type(callback).__name__} has a method {name!r}, which fit never calls: {way}"
                raise UnknownNameError(f"{text} fit calls {', '.join(_HOOKS)}")
    return checked


class LambdaCallback(Callback):
    """Call functions as hooks, with the arguments of `Callback`'s methods.

    Args:
        on_fit_begin: Called as `on_fit_begin(state)`.
        on_update: Called as `on_update(state, update)`.
        on_epoch: Called as `on_epoch(state, row)`.
        on_fit_end: Called as `on_fit_end(state, error)`.

    >>> shout = LambdaCallback(on_epoch=lambda state, row: print(row["epoch"], row["updates"]))
    >>> net = mxkit.models.softmax_regression(2); mxkit.initialize(net)
    >>> data = [(np.ones((4, 3)), np.zeros(4))] * 2
    >>> history = mxkit.fit(net, data, loss="softmax_ce", trainer="sgd", epochs=2, callbacks=[shout], progress=False)
    1 2
    2 4
    """

    def __init__(
        self, *, on_fit_begin: Hook = None, on_update: Hook = None, on_epoch: Hook = None, on_fit_end: Hook = None
    ) -> None:
        names = ("on_fit_begin", "on_update", "on_epoch", "on_fit_end")
        for name, function in zip(names, (on_fit_begin, on_update, on_epoch, on_fit_end)):
            if function is not None:
                setattr(self, name, function)
