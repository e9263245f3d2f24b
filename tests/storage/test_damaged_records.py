"""Damaged RecordIO files are refused, or read as MXNet reads them, at the cost of their size."""

import random
import tracemalloc

from damaging import damaged
from hypothesis import given, settings
from hypothesis import strategies as st
from mxkit.data.records import records, summarize
from mxkit.errors import DataError
import mxnet as mx
import numpy as np
import pytest
from sharing import examples

MAGIC = (0xCED7230A).to_bytes(4, "little")
IMAGE = bytes(range(256)) * 3
FILES = {
    "usual": [((0, number % 3, number, 0), IMAGE[: 50 + number]) for number in range(12)],
    "labels": [((0, np.arange(number), number, 1), IMAGE) for number in range(6)],
    "faces": [((2, [3, 5], 0, 0), b""), ((0, 0, 1, 0), IMAGE), ((0, 1, 2, 0), IMAGE), ((0, [1, 2], 3, 0), b"")],
    "parts": [((0, 1, 7, 0), MAGIC * 3 + IMAGE[:8] + MAGIC), ((0, 1, 8, 0), MAGIC), ((0, 1, 9, 0), IMAGE)],
    "large": [((0, 1, 1, 0), IMAGE * 500)],
}


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Bytes of each file and of its index, and where its headers are."""
    folder, found = tmp_path_factory.mktemp("records"), {}
    for name, contents in FILES.items():
        path = folder / f"{name}.rec"
        writer = mx.recordio.MXIndexedRecordIO(str(path.with_suffix(".idx")), str(path), "w")
        for key, (header, content) in enumerate(contents):
            writer.write_idx(key, mx.recordio.pack(mx.recordio.IRHeader(*header), content))
        writer.close()
        index = path.with_suffix(".idx").read_bytes()
        starts = [int(line.split()[1]) for line in index.splitlines()]
        found[name] = path.read_bytes(), index, [(start, start + 12, start + 32) for start in starts]
    return folder, found


def read_by_mxnet(path):
    reader = mx.recordio.MXRecordIO(str(path), "r")
    for record in iter(reader.read, None):
        header, content = mx.recordio.unpack(record)
        labels = np.atleast_1d(np.asarray(header.label, np.float32)).tobytes()
        yield header.id + (header.id2 << 64), content, labels


@settings(max_examples=examples(400))
@given(
    name=st.sampled_from(sorted(FILES)), seed=st.integers(0, 2**32), index=st.sampled_from(["sound", "none", "damaged"])
)
def test_damaged_files_are_refused_or_read_as_mxnet_reads_them(sources, name, seed, index):
    folder, found = sources
    content, own_index, places = found[name]
    random_, file = random.Random(seed), folder / "damaged.rec"
    if index != "damaged":
        content = damaged(random_, content, places, len(content) - 24)
    file.write_bytes(content)
    changed = bytearray(own_index)
    for _ in range(random_.randint(1, 3) if index == "damaged" else 0):
        changed[random_.randrange(len(changed))] = random_.choice([*b"0123456789\t\n-", random_.getrandbits(8)])
    file.with_suffix(".idx").write_bytes(changed)
    if index == "none":
        file.with_suffix(".idx").unlink()
    tracemalloc.start()
    try:
        summarize(file)
        read = [(one.id, one.content, one.labels.tobytes()) for _, one in records(file)]
    except DataError:
        read = None
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * len(content) + 2**20
    assert read is None or read == list(read_by_mxnet(file))
