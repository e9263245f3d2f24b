"""What is true of the rows of every benchmark's question."""

import json
import os

import numpy as np
import pytest

from benchmarks.harness import Row

in_make_benchmarks = pytest.mark.skipif(
    os.environ.get("MXKIT_BENCHMARKS") != "all", reason="takes long: `make benchmarks` runs every question once"
)


def check(rows):
    """Rows are whole, and are plain JSON."""
    rows = list(rows)
    for row in rows:
        assert np.isfinite(row.value)
        assert row.low is None or row.low <= row.value <= row.high
        assert row.ratio is None or 0 < row.ratio_low <= row.ratio <= row.ratio_high
    assert [Row(**json.loads(json.dumps(row._asdict()))) for row in rows] == rows
    return {(row.case, row.way): row for row in rows}
