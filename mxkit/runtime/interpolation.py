"""`scipy.interpolate.interp2d`, which warns since SciPy 1.10 and is gone since 1.14.

`fill(..., fast_fill=False)` of GluonCV's `data/transforms/mask.py` calls it (line 167).
"""

from types import SimpleNamespace
from typing import Any, Callable

SINCE = (1, 10)


def linear(x: Any, y: Any, z: Any, fill_value: float) -> Callable[[Any, Any], Any]:
    """Interpolate on a grid as `interp2d` did: by a spline of degree 1, with `fill_value` outside the grid.

    >>> at = linear([0, 1], [0, 1], np.array([[0.0, 1], [2, 3]]), fill_value=-1.0)
    >>> at([0.25, 2], [0.5]).tolist()
    [[1.25, -1.0]]
    """
    import numpy
    from scipy.interpolate import RectBivariateSpline

    spline = RectBivariateSpline(y, x, z, kx=1, ky=1)

    def at(columns: Any, rows: Any) -> Any:
        columns, rows = numpy.sort(columns), numpy.sort(rows)
        values = spline(rows, columns)
        values[:, (columns < x[0]) | (columns > x[-1])] = fill_value
        values[(rows < y[0]) | (rows > y[-1]), :] = fill_value
        return values

    return at


#: What `from scipy import interpolate` gives to GluonCV.
INTERPOLATE = SimpleNamespace(interpolate=SimpleNamespace(interp2d=linear))
