"""Straight-through estimators and gradient reversal, from MXNet's own operators."""

from typing import Any

from mxkit.core.arrays import is_numpy, legacy, of_kind, switches
import mxnet as mx


def sign_ste(x: Any) -> Any:
    """Take the sign; the gradient is that of the identity (straight-through estimator).

    It is MXNet's own `contrib.sign_ste`, and can be exported.

    Args:
        x: An NDArray or a Symbol.

    Returns:
        -1, 0 or 1, of the same kind and shape.

    >>> sign_ste(mx.nd.array([-0.3, 2])).asnumpy().tolist()
    [-1.0, 1.0]
    """
    return _elementwise("sign_ste", x)


def round_ste(x: Any) -> Any:
    """Round to whole numbers; the gradient is that of the identity (straight-through estimator).

    It is MXNet's own `contrib.round_ste`, and can be exported.

    Args:
        x: An NDArray or a Symbol.

    Returns:
        The rounded values, of the same kind and shape; halves are rounded away from 0.
    """
    return _elementwise("round_ste", x)


def gradient_reversal(x: Any, *, scale: float = 1.0) -> Any:
    """Reverse the gradient, for domain-adversarial training (arXiv:1505.07818).

    It is MXNet's own `contrib.gradientmultiplier`, and can be exported.

    Args:
        x: An NDArray or a Symbol.
        scale: The gradient is multiplied by `-scale`.

    Returns:
        The values of `x`.
    """
    return _elementwise("gradientmultiplier", x, scalar=-float(scale))


def _elementwise(name: str, x: Any, **arguments: float) -> Any:
    if not isinstance(x, (mx.nd.NDArray, mx.sym.Symbol)):
        raise TypeError(f"expected an NDArray or a Symbol; received {type(x).__name__}: {x!r:.100}")
    operators = mx.sym if isinstance(x, mx.sym.Symbol) else mx.nd
    with switches(is_numpy(x)):
        return of_kind(getattr(operators.contrib, name)(legacy(x), **arguments), is_numpy(x))
