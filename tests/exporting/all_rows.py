"""All rows of operators, for both ways out."""

from arithmetic_rows import ARITHMETIC_ROWS
from layer_rows import LAYER_ROWS
from numpy_rows import NUMPY_ROWS
from sequence_rows import SEQUENCE_ROWS
from shape_rows import SHAPE_ROWS

ROWS = [*LAYER_ROWS, *SHAPE_ROWS, *ARITHMETIC_ROWS, *SEQUENCE_ROWS, *NUMPY_ROWS]
