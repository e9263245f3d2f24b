"""What tests of checkpoints share: values of nets, compared bit for bit."""

import numpy as np


def values(net):
    """Arrays by path and number of the device."""
    parameters = net._collect_params_with_prefix().items()
    return {f"{path}@{i}": array.asnumpy() for path, p in parameters for i, array in enumerate(p.list_data())}


def assert_equal(one, other):
    assert one.keys() == other.keys()
    for path in one:
        np.testing.assert_array_equal(one[path], other[path])
