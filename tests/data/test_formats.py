"""The files that datasets come in: read as MXNet and NumPy read them, and refused where they are damaged or crafted."""

import gzip
import io
import tarfile

from genuine_files import IDX_CODES, binary_bytes, cifar_arrays, idx_bytes, tar_bytes
from mxkit.data.datasets import CIFAR10_FILES, CIFAR100_FILES, read_cifar, read_idx
from mxkit.errors import DataError
import mxnet as mx
import numpy as np
import pytest


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("dtype", sorted(IDX_CODES))
def test_idx_files_of_every_type(tmp_path, dtype, zipped):
    array = np.random.RandomState(0).randint(0, 100, (5, 4, 3)).astype(dtype)
    path = tmp_path / "any-name"
    path.write_bytes(gzip.compress(idx_bytes(array)) if zipped else idx_bytes(array))
    found = read_idx(path)
    np.testing.assert_array_equal(found, array)
    assert found.dtype == array.dtype
    assert found.dtype.isnative


GOOD = idx_bytes(np.arange(60, dtype="u1").reshape(5, 4, 3))


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "an empty file"),
        (b"<html>404</html>", "expected an IDX file.*received 3c 68 74 6d"),
        (GOOD[:-1], "76 bytes; it has 75 bytes"),
        (GOOD[:9], "expected an IDX file"),
        (GOOD + b"\0", "76 bytes; it has 77 bytes"),
        (b"\0\0\x07\x01" + GOOD[4:], "expected an IDX file"),
        (b"\0\0\x08\x00" + GOOD[4:], "expected an IDX file"),
        (b"\0\0\x08\x03" + b"\xff" * 12, "it has 16 bytes"),
    ],
)
def test_idx_files_that_are_none(tmp_path, content, words, zipped):
    path = tmp_path / "images"
    path.write_bytes(gzip.compress(content) if zipped else content)
    with pytest.raises(DataError, match=f"(?s)images: .*{words}"):
        read_idx(path)


def test_gzip_files_that_were_cut_off_or_changed(tmp_path):
    content, path = gzip.compress(GOOD), tmp_path / "images.gz"
    damaged = [(content[:cut], "damaged or was cut off") for cut in (11, 30, -4)]
    damaged += [
        (content[:at] + bytes([content[at] ^ 0x55]) + content[at + 1 :], "images.gz") for at in range(10, len(content))
    ]
    for changed, words in damaged:
        path.write_bytes(changed)
        with pytest.raises(DataError, match=words):
            read_idx(path)


# CIFAR


@pytest.mark.parametrize(("layout", "oracle"), [(CIFAR10_FILES, "CIFAR10"), (CIFAR100_FILES, "CIFAR100")])
def test_binary_files_are_read_as_mxnet_reads_them(tmp_path, layout, oracle):
    x, y = cifar_arrays(20, layout.labels.values())
    name = layout.test[0]
    (tmp_path / name).write_bytes(binary_bytes(x, y))
    found_x, found_y = read_cifar(tmp_path, [name], layout)
    reader = object.__new__(getattr(mx.gluon.data.vision, oracle))
    for column in range(y.shape[1]):
        reader._fine_label = column
        images, labels = reader._read_batch(str(tmp_path / name))
        np.testing.assert_array_equal(found_x.transpose(0, 2, 3, 1), images)
        np.testing.assert_array_equal(found_y[:, column], labels)
    assert found_x.dtype == np.uint8
    assert found_y.dtype == np.int32


def test_the_other_cifar_is_told(tmp_path):
    for layout, arrays, words in (
        (CIFAR10_FILES, cifar_arrays(3073, [20, 100]), "Is it the other CIFAR"),
        (CIFAR100_FILES, cifar_arrays(2, [10]), "expected records of 3074 bytes; received 6146 bytes"),
    ):
        (tmp_path / "test.bin").write_bytes(binary_bytes(*arrays))
        with pytest.raises(DataError, match=words):
            read_cifar(tmp_path, ["test.bin"], layout)


def test_archives_write_nothing_wherever_their_paths_point(tmp_path):
    content = binary_bytes(*cifar_arrays(2, [10]))
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "a.tar.gz").write_bytes(
        tar_bytes([("../../harm", b"x"), ("/tmp/../etc/harm", b"x"), ("../../test_batch.bin", content)])
    )
    x, _ = read_cifar(inside / "a.tar.gz", ["test_batch.bin"], CIFAR10_FILES)
    assert len(x) == 2
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a.tar.gz", "inside"]


CONTENT = binary_bytes(*cifar_arrays(40, [10]))


def archive_of_a_link():
    link, file = tarfile.TarInfo("d/test_batch.bin"), io.BytesIO()
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        archive.addfile(link)
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (tar_bytes([("d/test_batch.bin", CONTENT)])[:60_000], "the archive is damaged or was cut off"),
        (b"<html>", "the archive is damaged or was cut off"),
        (tar_bytes([("d/other.bin", CONTENT)]), r"it does not have the file\(s\) test_batch.bin"),
        (archive_of_a_link(), "does not have the file"),
    ],
    ids=["cut off", "a page", "other", "link"],
)
def test_archives_that_are_damaged(tmp_path, content, words):
    (tmp_path / "a.tar.gz").write_bytes(content)
    with pytest.raises(DataError, match=words):
        read_cifar(tmp_path / "a.tar.gz", ["test_batch.bin"], CIFAR10_FILES)
