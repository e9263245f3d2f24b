"""Metrics of quantities: errors, and the correlation of labels and outputs."""

from typing import Any, Sequence, Tuple

from mxkit.core.loss_meanings import meaning_of
from mxkit.metrics.metric import Metric
from mxkit.metrics.tasks import check_form
import mxnet as mx
import numpy as np


class _Regression(Metric):
    """A metric of labels and outputs with equal shapes, up to axes of length 1."""

    def _pair(self, labels: Sequence[Any], output: Any) -> Tuple[Any, Any]:
        """Labels in the outputs' shape, and the outputs, both float64."""
        meaning_of(self.loss).refuse_quantities(self.name)
        label, values = self._labelled(labels, output)
        check_form(self.name, values, label)
        # reshaped, because (n, 1) - (n,) is (n, n) without an error (T11)
        return label.astype("float64").reshape(values.shape), values.astype("float64")


class MSE(_Regression):
    """Mean squared error over all values; labels and outputs have equal shapes."""

    name = "mse"

    def update(self, labels: Sequence[Any], output: Any) -> None:
        label, values = self._pair(labels, output)
        self.add(self.error(values - label).reshape((values.shape[0], -1)).mean(axis=1))

    def error(self, difference: Any) -> Any:
        """The error of each value."""
        return difference.square()


class MAE(MSE):
    """Mean absolute error over all values; labels and outputs have equal shapes."""

    name = "mae"

    def error(self, difference: Any) -> Any:
        return difference.abs()


class RMSE(MSE):
    """Square root of the mean squared error over all values, in the unit of the labels."""

    name = "rmse"

    def figure(self, total: "np.ndarray") -> float:
        return float(super().figure(total) ** 0.5)


class _OfMoments(_Regression):
    """Base of metrics from means and squared deviations of labels and outputs, pooled without cancellation.

    A row is (count, mean label, mean output, squares of labels, squares of outputs, products). Squares and products are
    sums of deviations from the means; all but the count have K numbers, one for each column. Rows are pooled as in
    Chan, Golub and LeVeque 1979.
    """

    def _columns(self, label: Any, values: Any) -> Tuple[Any, Any]:
        """Labels and outputs as (n, K)."""
        raise NotImplementedError

    def update(self, labels: Sequence[Any], output: Any) -> None:
        label, values = self._columns(*self._pair(labels, output))
        means = [column.mean(axis=0, keepdims=True) for column in (label, values)]
        off_label, off_output = (mx.nd.broadcast_sub(a, mean) for a, mean in zip((label, values), means))
        squares = [products.sum(axis=0) for products in (off_label**2, off_output**2, off_label * off_output)]
        count = mx.nd.full((1,), label.shape[0], ctx=label.ctx, dtype="float64")
        row = mx.nd.concat(count, *[mean.reshape((-1,)) for mean in means], *squares, dim=0)
        self.add_total(row, label.shape[0])

    def pooled(self, rows: Any) -> Any:
        columns = (rows.shape[1] - 1) // 5
        counts, samples = rows[:, :1], rows[:, :1].sum(axis=0)
        parts = [rows[:, 1 + i * columns : 1 + (i + 1) * columns] for i in range(5)]
        means = [(counts * part).sum(axis=0) / samples for part in parts[:2]]
        off_label, off_output = (part - mean.reshape((1, -1)) for part, mean in zip(parts[:2], means))
        pairs = ((off_label, off_label), (off_output, off_output), (off_label, off_output))
        squares = [part.sum(axis=0) + (counts * a * b).sum(axis=0) for part, (a, b) in zip(parts[2:], pairs)]
        row = [samples, *means, *squares]
        return np.concatenate(row) if isinstance(rows, np.ndarray) else mx.nd.concat(*row, dim=0)

    def figure(self, total: "np.ndarray") -> float:
        return self.score(total[0], *total[1:].reshape((5, -1)))

    def score(self, samples: float, *moments: "np.ndarray") -> float:
        """The figure of the pooled row; each moment is float64 of shape (K,)."""
        raise NotImplementedError


class R2(_OfMoments):
    """Coefficient of determination, `1 - residual squares / squares of the labels`, at most 1; the mean over columns.

    Each value of a sample is a column. If labels do not vary it is 1 for exact outputs and 0 for others, and NaN for
    one sample, as in scikit-learn's `r2_score`.
    """

    name = "r2"

    def _columns(self, label: Any, values: Any) -> Tuple[Any, Any]:
        return label.reshape((label.shape[0], -1)), values.reshape((values.shape[0], -1))

    def score(self, samples: float, *moments: "np.ndarray") -> float:
        if samples < 2:
            return float("nan")
        label, output, label_squares, output_squares, products = moments
        residual = np.maximum(label_squares + output_squares - 2 * products + samples * (label - output) ** 2, 0)
        constant = label_squares == 0
        explained = 1 - residual / np.where(constant, 1, label_squares)
        return float(np.where(constant & np.isfinite(residual), residual == 0, explained).mean())


class PearsonR(_OfMoments):
    """Correlation coefficient of labels and outputs over all values, from -1 to 1; NaN if one of them does not vary."""

    name = "pearsonr"

    def _columns(self, label: Any, values: Any) -> Tuple[Any, Any]:
        return label.reshape((-1, 1)), values.reshape((-1, 1))

    def score(self, samples: float, *moments: "np.ndarray") -> float:
        label_squares, output_squares, products = (float(moment[0]) for moment in moments[2:])
        spread = label_squares**0.5 * output_squares**0.5
        return products / spread if spread else float("nan")
