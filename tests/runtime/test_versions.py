"""The version classes that stand in for distutils' (T89, T92)."""

import itertools

from mxkit.runtime.old_names import DISTUTILS_VERSION
from mxkit.runtime.wheels import release
import pytest

ASCENDING = [
    "0.9", "1.0.dev3", "1.0a1.dev2", "1.0a1", "1.0b2", "1.0rc1", "1.0", "1.0.post1", "1.0.1", "1.2", "1.10", "1.17",
    "1.26.4", "2.0.0b1", "2.0.0rc2", "2", "2.0.2", "2.5.0rc1", "2.5.5",
]  # fmt: skip
version = LooseVersion = StrictVersion = DISTUTILS_VERSION.LooseVersion


def test_every_pair_of_versions_has_its_order():
    for low, high in itertools.combinations(ASCENDING, 2):
        assert version(low) < version(high), (low, high)
        assert version(high) >= version(low), (low, high)
        assert version(low) <= high, "text is compared too, as distutils did"
        assert high > version(low)
        assert version(low) != version(high)


def test_equal_versions():
    for one, other in [("2", "2.0.0"), ("1.9.1", "1.9.1+cpu"), ("1.0RC1", "1.0rc1"), ("1.01", "1.1")]:
        assert StrictVersion(one) == StrictVersion(other)
        assert hash(StrictVersion(one)) == hash(StrictVersion(other))
        assert not LooseVersion(one) < LooseVersion(other)


def test_the_comparisons_of_mxnet_and_gluoncv():
    assert StrictVersion("1.26.4") >= StrictVersion("1.6.0")  # mxnet/numpy_op_fallback.py
    assert LooseVersion("2.5.5") >= LooseVersion("1.17")  # mxnet/numpy_dispatch_protocol.py
    assert not LooseVersion("1.9.1") < LooseVersion("1.4.0")  # gluoncv/check.py
    assert not LooseVersion("1.9.1") >= LooseVersion("2.0.0")
    assert str(LooseVersion("1.9.1")) == LooseVersion("1.9.1").vstring == "1.9.1"


@pytest.mark.parametrize(
    ("text", "numbers"), [("2.5.0rc1", (2, 5, 0)), ("1.26.4", (1, 26, 4)), ("2.1.0.dev0+git", (2, 1, 0)), ("", ())]
)
def test_release_reads_the_leading_numbers(text, numbers):
    assert release(text) == numbers
