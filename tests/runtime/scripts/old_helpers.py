import numpy as np


def select(values, mask):
    return values[mask].astype(np.int).tolist() if mask.dtype == np.bool else None
