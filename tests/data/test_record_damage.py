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
    """

    def __init__(self, records, lines, random_):
        self.records, self.lines, self.random = list(records), list(lines), random_
        self.at = random_.randrange(1, len(records))
        self.lost, self.unseen = {self.at}, False
        self.where = sum(map(len, records[: self.at]))

    def change(self, first, last):
        """Change one bit of the damaged record's bytes `first` to `last - 1`; a negative `last` is from the end."""
        data = bytearray(self.records[self.at])
        place = self.random.randrange(first, last if last > 0 else len(data) + last)
        data[place] ^= 1 << self.random.randrange(8)
        self.records[self.at] = bytes(data)


def truncated(case):
    whole = b"".join(case.records)
    case.records = [whole[: case.where + case.random.randrange(1, len(case.records[case.at]))]]
    case.lost = set(range(case.at, len(case.lines)))


def truncated_between_records(case):
    case.lost = set(range(case.at, len(case.records)))
    del case.records[case.at :]


def magic(case):
    case.change(0, 4)


def length(case):
    before = int.from_bytes(case.records[case.at][4:8], "little")
    case.change(4, 8)
    after = int.from_bytes(case.records[case.at][4:8], "little")
    case.unseen = before < after <= before + -before % 4  # the image, and a zero of the padding


def number_of_labels(case):
    case.change(8, 12)


def label(case):
    case.change(12, 16)
    case.unseen = True  # a label is any number


def id_(case):
    case.change(16, 32)
    case.unseen = True  # an id is any number


def payload(case):
    case.change(HEAD, -8)
    case.unseen = True  # a JPEG has no checksum: other pixels, mostly


def start_of_payload(case):
    case.change(HEAD, HEAD + 2)


def no_index(case):
    case.lines, case.lost, case.where = [], set(), None


def index_shifted(case):
    number = case.at
    key, place = case.lines[number].split("\t")
    case.lines[number] = f"{key}\t{int(place) + 4}\n"
    case.lost = set()


def index_without_a_line(case):
    del case.lines[case.at]
    case.lost = set()


def index_that_is_none(case):
    case.lines[case.at] = case.random.choice(
        ["\x00\x01\n", "key\n", "5\tx\n", "5\t-4\n", "5\t1²\n", f"5\t{10**30}\n", "\udcff\t1\n"]
    )
    case.lost = set()


def zeros(case):
    whole = bytearray(b"".join(case.records))
    first = case.where + case.random.choice([0, 0, 4, 8])
    last = min(len(whole), first + case.random.randrange(64, 4096))
    whole[first:last] = bytes(last - first)
    ends = np.cumsum([len(record) for record in case.records])
    case.lost = set(range(case.at, int(np.searchsorted(ends, last)) + 1))
    case.records = [bytes(whole)]


def garbage(case):
    size = case.random.randrange(1, 300)
    case.records.insert(case.at, bytes(case.random.getrandbits(8) for _ in range(size)))
    case.lost = set()
    if case.random.random() < 0.5:
        case.lines = []


def bytes_missing(case):
    data = case.records[case.at]
    place = case.random.randrange(HEAD, len(data) - 60)
    case.records[case.at] = data[:place] + data[place + case.random.randrange(1, 50) :]
    if case.random.random() < 0.5:
        case.lines = []


def bytes_added(case):
    data = case.records[case.at]
    place = case.random.randrange(HEAD, len(data) - 8)
    case.records[case.at] = data[:place] + bytes(case.random.randrange(1, 50)) + data[place:]
    if case.random.random() < 0.5:
        case.lines = []


WAYS = [truncated, truncated_between_records, magic, length, number_of_labels, label, id_, payload, start_of_payload]
WAYS += [no_index, index_shifted, index_without_a_line, index_that_is_none, zeros, garbage]
WAYS += [bytes_missing, bytes_added]


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
    if any(damage.byte == case.where for damage in found.damages):
        return True
    return case.lost == set() and any(damage.byte is None for damage in found.damages)


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


@pytest.mark.parametrize(("count", "damaged"), [(100, 24), long(10_000, 500)])
def test_many_damages_of_one_file_are_named(count, damaged, drawn):
    path, records, lines = drawn(count)
    before, draw = [key(record) for record in sound(path)], random.Random(count)
    chosen = sorted(draw.sample(range(1, count, 2), damaged))
    for place, number in enumerate(chosen):
        case = Case(records, lines, draw)
        case.at = number
        (magic, number_of_labels, start_of_payload)[place % 3](case)
        records = case.records
    path.write_bytes(b"".join(records))
    damages = check(path).damages
    assert [damage.number for damage in damages] == chosen
    assert [damage.keys for damage in damages] == [[lines[number].split("\t")[0]] for number in chosen]
    after = {key(record) for record in sound(path)}
    assert [number for number, one in enumerate(before) if one not in after and number not in chosen] == []
