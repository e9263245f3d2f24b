"""Several labels per sample: four traits of a handwritten digit."""

import mxkit
import numpy as np

TRAITS = {"even": (0, 2, 4, 6, 8), "above 4": (5, 6, 7, 8, 9), "prime": (2, 3, 5, 7), "has a loop": (0, 6, 8, 9)}


@mxkit.register("data")
def digit_traits(size: int = 8) -> mxkit.data.Splits:
    """The parts of `mxkit.data.digits`, with a label for each of four traits.

    Args:
        size: As for `mxkit.data.digits`.

    Returns:
        x float32 of shape (N, 1, size, size); y float32 of shape (N, 4), 1 where the digit has the trait.
    """
    digits = mxkit.data.digits(size)
    table = np.array([[digit in trait for trait in TRAITS.values()] for digit in range(10)], np.float32)
    parts = [mxkit.data.Split(part.x, table[part.y]) for part in digits[:3]]
    return mxkit.data.Splits(*parts, list(TRAITS))
