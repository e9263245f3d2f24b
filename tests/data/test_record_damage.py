"""A `.rec` file of drawn images is made, listed and checked, then damaged: what is lost is named, the rest is read."""

from contextlib import suppress
import random

import cv2
from mxkit.data.image_bytes import Record
from mxkit.data.image_files import ImageRecords
from mxkit.data.records import Encoding, check, make, of_folder, rows, scan, split, summarize
from mxkit.errors import DataError
import numpy as np
import pytest
from sharing import long

HEAD = 32  # bytes before the image: magic number, length, number of labels, label, id


class Case:
    """A file's records and the lines of its index, which a way to damage changes.

    Attributes:
        lost: Numbers of the records that need not be read any more.
        at: Number of the record where the damage is.
        where: Byte that must be named; None if the index must be.
        unseen: Nothing in the format shows this damage.
        near: The record after it may be named in its place.
    """

    def __init__(self, records, lines, random_):
        self.records, self.lines, self.random = list(records), list(lines), random_
        self.at = random_.randrange(1, len(records))
        self.lost, self.unseen, self.near = {self.at}, False, False
        self.where = sum(map(len, records[: self.at]))

    @property
    def rest(self):
        return set(range(self.at, len(self.lines)))


def changed(first, last, unseen=False):
    """Change one bit of the damaged record's bytes `first` to `last - 1`; a negative `last` is from the end."""

    def change(case):
        data = bytearray(case.records[case.at])
        data[case.random.randrange(first, last if last > 0 else len(data) + last)] ^= 1 << case.random.randrange(8)
        case.records[case.at] = bytes(data)
        case.unseen = unseen

    return change


def truncated(case):
    whole = b"".join(case.records)
    case.records = [whole[: case.where + case.random.randrange(1, len(case.records[case.at]))]]
    case.lost = case.rest


def truncated_between_records(case):
    case.lost = case.rest
    del case.records[case.at :]


def length(case):
    before = int.from_bytes(case.records[case.at][4:8], "little")
    changed(4, 8)(case)
    after = int.from_bytes(case.records[case.at][4:8], "little")
    case.unseen = before < after <= before + -before % 4  # the image, and a zero of the padding


def no_index(case):
    case.lines, case.lost, case.where = [], set(), None


def zeros(case):
    whole = bytearray(b"".join(case.records))
    first = case.where + case.random.choice([0, 0, 4, 8])
    last = min(len(whole), first + case.random.randrange(64, 4096))
    whole[first:last] = bytes(last - first)
    ends = np.cumsum([len(record) for record in case.records])
    case.lost = set(range(case.at, int(np.searchsorted(ends, last)) + 1))
    case.records = [bytes(whole)]


def garbage(case):
    case.records.insert(case.at, bytes(case.random.getrandbits(8) for _ in range(case.random.randrange(1, 300))))
    case.lost = case.rest  # the index does not fit any more


def bytes_missing(case):
    data = case.records[case.at]
    place = case.random.randrange(HEAD, len(data) - 60)
    case.records[case.at] = data[:place] + data[place + case.random.randrange(1, 50) :]
    case.lost, case.near = case.rest, True


magic, number_of_labels, start_of_payload = changed(0, 4), changed(8, 12), changed(HEAD, HEAD + 2)
WAYS = [magic, number_of_labels, start_of_payload]
# a label and an id are any numbers, and a JPEG has no checksum: other pixels, mostly
WAYS += [changed(12, 16, True), changed(16, 32, True), changed(HEAD, -8, True), length, truncated]
WAYS += [truncated_between_records, no_index, zeros, garbage, bytes_missing]


@pytest.fixture
def drawn(tmp_path):
    """Draw a folder of small images, and make and list a file of them: its path, its records and its index's lines."""

    def build(count):
        for number in range(count):
            folder = tmp_path / "photos" / str(number % 3)
            folder.mkdir(parents=True, exist_ok=True)
            pixels = np.random.RandomState(number).randint(0, 256, (12, 16, 3), np.uint8)
            cv2.imwrite(str(folder / f"{number:05}.jpg"), pixels)
        path = tmp_path / "all.rec"
        entries = split(of_folder(tmp_path / "photos")[0], 1, True)[""]
        assert make(tmp_path / "photos", entries, path, Encoding()).records == count
        listed = list(rows(path))
        assert sorted(row.id for row in listed) == list(range(count))
        assert {(row.height, row.width, row.format) for row in listed} == {(12, 16, ".jpg")}
        assert check(path)[1:] == (count, count, count, [])
        content, starts = path.read_bytes(), [row.byte for row in listed]
        records = [content[start:end] for start, end in zip(starts, [*starts[1:], len(content)])]
        return path, records, path.with_suffix(".idx").read_text().splitlines(True)

    return build


def sound(path):
    return [found for _, found in scan(path) if isinstance(found, Record)]


def key(record):
    return (record.id, record.labels.tobytes(), record.content)


def told(case, found):
    """Whether the damage is among those that were found."""
    if case.where is None:
        return not found.damages and found.indexed is None
    nearest = case.where + len(case.records[case.at]) + 50 if case.near else case.where
    return any(case.where <= damage.byte <= nearest for damage in found.damages if damage.byte is not None)


@pytest.mark.parametrize(("count", "turns"), [(60, 3 * len(WAYS)), long(1_000, 500)])
def test_what_is_damaged_is_named_and_the_rest_is_read(count, turns, drawn):
    path, records, lines = drawn(count)
    before, wrong = [key(record) for record in sound(path)], []
    for turn in range(turns):
        way = WAYS[turn % len(WAYS)]
        case = Case(records, lines, random.Random(turn))
        way(case)
        path.write_bytes(b"".join(case.records))
        path.with_suffix(".idx").write_text("".join(case.lines), encoding="utf-8", errors="surrogateescape")
        if not case.lines:
            path.with_suffix(".idx").unlink()
        found = check(path)
        after = {key(record) for record in sound(path)}
        missing = [number for number, one in enumerate(before) if one not in after and number not in case.lost]
        if missing:
            wrong.append((turn, way.__name__, "not read", missing[:5]))
        if not case.unseen and not told(case, found):
            wrong.append((turn, way.__name__, "not named", case.at, case.where, found.damages[:2]))
        with suppress(DataError):
            summarize(path)
        for number in (0, case.at):
            with suppress(DataError, IndexError):  # the file is shorter than before
                assert ImageRecords(path)[number][0].shape[2] == 3
    assert not wrong, (len(wrong), wrong[:20])
