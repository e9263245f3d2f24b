"""Versions as MXNet and GluonCV compare them with distutils, which is gone (T89, T92)."""

from mxkit.runtime.old_names import DISTUTILS_VERSION
from mxkit.runtime.wheels import release
import pytest

LooseVersion, StrictVersion = DISTUTILS_VERSION.LooseVersion, DISTUTILS_VERSION.StrictVersion


def test_the_comparisons_of_mxnet_and_gluoncv():
    assert StrictVersion("1.26.4") >= StrictVersion("1.6.0")  # mxnet/numpy_op_fallback.py
    assert LooseVersion("2.5.5") >= LooseVersion("1.17")  # mxnet/numpy_dispatch_protocol.py
    assert not LooseVersion("1.9.1+cpu") < LooseVersion("1.4.0")  # gluoncv/check.py
    assert not LooseVersion("1.9.1") >= LooseVersion("2.0.0")
    assert LooseVersion("1.10") > LooseVersion("1.9")


@pytest.mark.parametrize(
    ("text", "numbers"), [("2.5.0rc1", (2, 5, 0)), ("1.26.4", (1, 26, 4)), ("2.1.0.dev0+git", (2, 1, 0)), ("", ())]
)
def test_release_reads_the_leading_numbers(text, numbers):
    assert release(text) == numbers
