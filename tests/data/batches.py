"""Batches of loaders as NumPy arrays, for the tests of each loader."""

import numpy as np


def leaves(part):
    return [leaf for one in part for leaf in leaves(one)] if isinstance(part, (tuple, list)) else [part]


def read(loader):
    """The arrays of each batch of an epoch, without their nesting."""
    return [tuple(array.asnumpy() for array in leaves(batch)) for batch in loader]


def assert_same(batches, others):
    assert len(batches) == len(others)
    for batch, other in zip(batches, others):
        assert [array.dtype for array in batch] == [array.dtype for array in other]
        for one, two in zip(batch, other):
            np.testing.assert_array_equal(one, two)
