"""Two classes from a table: scikit-learn's bundled measurements of 569 breast tumours."""

import mxkit
from mxkit.data.splits import three_parts
import numpy as np


@mxkit.register("data")
def breast_cancer(valid: float = 0.1, test: float = 0.2) -> mxkit.data.Splits:
    """Measurements of cell nuclei, each column with mean 0 and deviation 1 over the training part.

    Args:
        valid: Share of all samples.
        test: Share of all samples.

    Returns:
        x float32 of shape (N, 30); y float32 of shape (N,): 1 for benign, 0 for malignant.

    Source:
        https://archive.ics.uci.edu/dataset/17/breast+cancer+wisconsin+diagnostic
    """
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer()
    parts = three_parts(bunch.target, len(bunch.target), valid, test)
    mean, std = bunch.data[parts[0]].mean(axis=0), bunch.data[parts[0]].std(axis=0)
    x, y = ((bunch.data - mean) / std).astype(np.float32), bunch.target.astype(np.float32)
    train, validation, tested = (mxkit.data.Split(x[rows], y[rows]) for rows in parts)
    return mxkit.data.Splits(train, validation, tested, ["malignant", "benign"])
