"""Functions as hooks of `fit`."""

from typing import Any, Callable, Optional

from mxkit.training.callbacks.callback import Callback
from mxkit.training.history import Row
from mxkit.training.ledger import Update
from mxkit.training.state import FitState


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
