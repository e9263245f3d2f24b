"""Damages `.rec` files and reads them without MXNet: `python tests/storage/fuzz_records.py --count 2000`.

`mxkit.data.records` must refuse each file with a DataError, or MXNet's reader must read the same records. Exit code 1
if a file crashed, hung, cost more than 4 times its size and 32 MB, or was read otherwise.
"""

import sys

import fuzz_files
from mxkit.data.records import records, summarize
from mxkit.errors import DataError
import mxnet as mx
import numpy as np

FAILURES = ("crashed", "hung", "grew", "other error", "read otherwise")
MAGIC = (0xCED7230A).to_bytes(4, "little")


def sources(folder):
    """Write `.rec` files of each kind: one label, several, none with an image, records in parts, and a large image."""
    image = bytes(range(256)) * 3
    files = {
        "usual": [((0, number % 3, number, 0), image[: 50 + number]) for number in range(12)],
        "labels": [((0, np.arange(number), number, 1), image) for number in range(6)],
        "faces": [((2, [3, 5], 0, 0), b""), ((0, 0, 1, 0), image), ((0, 1, 2, 0), image), ((0, [1, 2], 3, 0), b"")],
        "parts": [((0, 1, 7, 0), MAGIC * 3 + image[:8] + MAGIC), ((0, 1, 8, 0), MAGIC), ((0, 1, 9, 0), image)],
        "large": [((0, 1, 1, 0), image * 500)],
    }
    for name, contents in files.items():
        writer = mx.recordio.MXIndexedRecordIO(str(folder / f"{name}.idx"), str(folder / f"{name}.rec"), "w")
        for key, (header, content) in enumerate(contents):
            writer.write_idx(key, mx.recordio.pack(mx.recordio.IRHeader(*header), content))
        writer.close()
    return sorted(folder.glob("*.rec"))


def headers(path):
    """(start, place of a count, end) of each record's headers, and the file's end, for `fuzz_files.damaged`."""
    starts = [int(line.split("\t")[1]) for line in path.with_suffix(".idx").read_text().splitlines()]
    return [(start, start + 12, start + 32) for start in starts], path.stat().st_size - 24


def damaged_index(random_, content):
    """Change some characters of an index."""
    data = bytearray(content)
    for _ in range(random_.randint(1, 3)):
        data[random_.randrange(len(data))] = random_.choice([*b"0123456789\t\n-", random_.getrandbits(8)])
    return bytes(data)


def judge(path):
    """Read one file and its index, and say what became of it."""
    try:
        found = summarize(path)
    except DataError:
        return "refused"
    except Exception as error:
        return f"other error: {type(error).__name__}: {error}"[:300]
    return f"read: {found.total} records"


def differs(path):
    """Whether MXNet reads other records than `records`."""
    reader = mx.recordio.MXRecordIO(str(path), "r")
    for _, record in records(path):
        header, content = mx.recordio.unpack(reader.read())
        label = np.atleast_1d(np.asarray(header.label, np.float32))
        if (header.id + (header.id2 << 64), content) != (record.id, record.content):
            return True
        if label.tobytes() != record.labels.tobytes():
            return True
    return reader.read() is not None


def measured(path):
    result, cost = fuzz_files.grown(judge, path)
    if cost > 4 * path.stat().st_size + 32 * 2**20:
        return f"grew by {cost >> 20} MB, {result}"
    if result.startswith("read") and differs(path):
        return "read otherwise"
    return "read" if result.startswith("read") else result


def work(folder):
    """The function that damages and reads one file."""
    known = [(path, path.read_bytes(), *headers(path)) for path in sources(folder)]
    judge(known[0][0])

    def one(random_):
        path, content, places, tail = random_.choice(known)
        file = folder / "damaged.rec"
        index = path.with_suffix(".idx").read_bytes()
        file.with_suffix(".idx").write_bytes(index)
        if random_.random() < 0.2:
            file.with_suffix(".idx").write_bytes(damaged_index(random_, index))
        elif random_.random() < 0.5:
            file.with_suffix(".idx").unlink()
        file.write_bytes(content if random_.random() < 0.1 else fuzz_files.damaged(random_, content, places, tail))
        return path.name, measured(file)

    return one


def run(count, seed):
    """Read `count` damaged files; as `fuzz_files.run`."""
    return fuzz_files.run(count, seed, __file__, FAILURES)


if __name__ == "__main__":
    sys.exit(fuzz_files.main(__doc__, work, run))
