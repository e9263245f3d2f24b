"""What a loop reads: loaders over arrays, and datasets."""

from .datasets import Split as Split
from .datasets import Splits as Splits
from .datasets import digits as digits
from .loader import ArrayLoader as ArrayLoader

__all__ = ["ArrayLoader", "Split", "Splits", "digits"]
