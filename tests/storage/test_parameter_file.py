"""Parameter files: all that MXNet writes is read bit for bit, anything else is refused before MXNet reads a byte."""

import os
from pathlib import Path
import random
import resource
import struct
import sys

from damaging import damaged
from hypothesis import given, settings
from hypothesis import strategies as st
from mxkit.errors import CheckpointError
from mxkit.storage import parameter_file, params_format
from mxkit.storage.parameter_file import read_arrays
from mxkit.storage.params_format import describe_file
import mxnet as mx
import numpy as np
import pytest
from sharing import examples

BFLOAT16 = np.dtype([("bfloat16", np.uint16)])
DTYPES = ["float32", "float64", "float16", "uint8", "int32", "int8", "int64", "bool", BFLOAT16]
DENSE = [[0, 0, 0], [1, 0, 2], [0, 0, 0], [0, 3, 0]]


def every_kind():
    numbers = mx.nd.random.normal(shape=(3, 4))
    dense = mx.nd.array(DENSE)
    return {
        "dtypes": {str(dtype): numbers.astype(dtype) for dtype in DTYPES},
        "shapes": {str(ndim): mx.nd.random.normal(shape=(1,) * ndim + (2,)) for ndim in (0, 1, 3, 31)},
        "sparse": {
            "row_sparse": dense.tostype("row_sparse"),
            "csr": dense.tostype("csr"),
            "empty rows": mx.nd.zeros((5, 2, 2), stype="row_sparse"),
            "empty csr": mx.nd.zeros((5, 2), stype="csr", dtype="float64"),
            "dense": dense,
        },
        "devices": {"cpu": numbers, "third": numbers.as_in_context(mx.cpu(2)), "last": mx.nd.ones(1, ctx=mx.cpu(1000))},
        "shared memory": {"x": numbers.as_in_context(mx.Context("cpu_shared", 0))},
        "names": {"": numbers, "größe.β": numbers, "b": numbers, "a": numbers, "n" * 1024: numbers},
        "nothing": {},
    }


def assert_same(received, expected):
    assert list(received) == list(expected)
    for name, array in expected.items():
        other = received[name]
        assert (other.shape, other.dtype, other.stype) == (array.shape, array.dtype, array.stype), name
        assert other.context == mx.cpu()
        assert other.asnumpy().tobytes() == array.asnumpy().tobytes(), name


@pytest.mark.parametrize("kind", every_kind())
def test_what_mxnet_writes_is_read_bit_for_bit(kind, tmp_path):
    arrays = every_kind()[kind]
    file = tmp_path / "a.params"
    mx.nd.save(str(file), arrays)
    assert_same(read_arrays(file), arrays)
    described = describe_file(str(file))
    assert list(described) == list(arrays)
    for name, (shape, dtype) in described.items():
        assert shape == arrays[name].shape
        assert dtype == ("bfloat16" if arrays[name].dtype == BFLOAT16 else np.dtype(arrays[name].dtype).name)


def test_numpy_shapes_are_read_whatever_mode_is_on(tmp_path):
    file, usual = tmp_path / "a.params", tmp_path / "b.params"
    with mx.util.np_shape(True):
        arrays = {dtype: mx.nd.ones((2, 3), dtype=dtype) for dtype in ("float16", "int8", "bool", "float64")}
        arrays.update({"scalar": mx.nd.full((), 7), "empty": mx.nd.zeros((0, 3))})
        mx.nd.save(str(file), arrays)
    mx.nd.save(str(usual), {"x": mx.nd.ones(2)})
    described = {name: (array.shape, np.dtype(array.dtype).name) for name, array in arrays.items()}
    assert describe_file(file) == described
    for mode in (False, True):
        with mx.util.np_shape(mode), mx.util.np_array(mode):
            received = read_arrays(file)
            assert (mx.util.is_np_shape(), mx.util.is_np_array()) == (mode, mode)
            assert read_arrays(usual)["x"].shape == (2,)
        with mx.util.np_shape(True):
            assert_same(received, arrays)


@pytest.mark.parametrize(("stype", "rows"), [("row_sparse", 0), ("row_sparse", 4), ("csr", 0)])
def test_sparse_arrays_that_were_still_being_computed(stype, rows, tmp_path):
    # nd.save writes their stored shape before it waits for them: one of these in a run of a hundred
    array = mx.nd.array(DENSE).tostype(stype)
    array.wait_to_read()
    file = tmp_path / "a.params"
    mx.nd.save(str(file), {"x": array})
    data = bytearray(file.read_bytes())
    word(36, "<q", rows)(data)
    file.write_bytes(bytes(data))
    assert_same(read_arrays(file), {"x": array})
    assert_same(mx.nd.load(str(file)), {"x": array})


@pytest.mark.parametrize("version", [0, 1])
def test_files_of_old_mxnet_are_read_as_mxnet_reads_them(version, tmp_path):
    shape, numbers = (2, 3), np.arange(6, dtype=np.float32)
    start = struct.pack("<2I", *shape) if version == 0 else struct.pack("<i2q", 2, *shape)
    magic = 2 if version == 0 else 0xF993FAC8
    array = struct.pack("<I", magic) + start + struct.pack("<3i", 1, 0, 0) + numbers.tobytes()
    names = struct.pack("<3Q", 2, 1, ord("a"))[:17] + struct.pack("<Q", 1) + b"b"
    file = tmp_path / "old.params"
    file.write_bytes(struct.pack("<3Q", 0x112, 0, 2) + array + array + names)
    assert_same(read_arrays(file), mx.nd.load(str(file)))
    np.testing.assert_array_equal(read_arrays(file)["b"].asnumpy(), numbers.reshape(shape))
    assert describe_file(file) == {"a": (shape, "float32"), "b": (shape, "float32")}


def test_arrays_of_a_gpu_that_is_not_here(tmp_path):
    file = tmp_path / "a.params"
    mx.nd.save(str(file), {"x": mx.nd.arange(3)})
    data = bytearray(file.read_bytes())
    data[44:52] = struct.pack("<2i", 2, 7)
    file.write_bytes(bytes(data))
    assert_same(read_arrays(file), {"x": mx.nd.arange(3)})
    with file.open("rb") as opened:  # a wheel without CUDA ignores the device; what it would be told is the CPU
        array = params_format.Walk(opened, file).arrays()["x"]
    assert array.header == bytes(data[24:44]) + struct.pack("<3i", 1, 0, 0)


def test_arrays_too_large_for_a_buffer_are_read_by_mxnet_itself(tmp_path, monkeypatch):
    # load_frombuffer cuts lengths off to 32 bits: an array of 4 GiB was tried by hand
    monkeypatch.setattr(parameter_file, "_BUFFER_LIMIT", 1100)
    monkeypatch.delattr(mx.nd, "load_frombuffer")
    file = tmp_path / "a.params"
    arrays = {"x": mx.nd.arange(30), "y": mx.nd.ones(2)}
    for numpy in (False, True):
        with mx.util.np_shape(numpy):
            mx.nd.save(str(file), arrays)
        assert_same(read_arrays(file), arrays)


def word(position, form, value):
    """Write an integer over a place of the file of `written`."""

    def change(data):
        data[position : position + struct.calcsize(form)] = struct.pack(form, value)

    return change


def written(path):
    """Two float32 arrays; the first begins at 24, the second at 88, the names at 136 and the last of them at 165."""
    mx.nd.save(str(path), {"first": mx.nd.arange(6).reshape((2, 3)), "other": mx.nd.ones(4)})
    return bytearray(path.read_bytes())


REFUSED = [
    (lambda data: data.clear(), "no parameter file: expected 0x112 in its first 8 bytes.*received b''"),
    (lambda data: data.__setitem__(slice(None), b"<!DOCTYPE html>"), "is no parameter file: .*received b'<!DOCTYPE"),
    (lambda data: data.__delitem__(slice(20, None)), r"cut off or damaged: expected 16 bytes .* received 12 up to the"),
    (word(8, "<Q", 1), "damaged: expected 0 in bytes 8 to 15, received 1"),
    (word(16, "<Q", 2**63), r"damaged: expected .*\(array 3 of 9223372036854775808\)"),
    (word(16, "<Q", 1), r"damaged: expected 1 names, one for each array, received"),
    (word(24, "<I", 33), r"damaged: expected the magic number of an array, like 0xf993fac9, received 0x21"),
    (word(88, "<I", 0xF993FACA), "expected the magic number of array 1, 0xf993fac9, received 0xf993faca"),
    (word(28, "<i", 3), r"expected a storage type of \[0, 1, 2\], received 3"),
    (word(32, "<i", 0), r"damaged: expected 1 to 32 axes, received 0"),
    (word(36, "<q", 0), r"damaged: expected sizes of 1 to 2147483647, received \(0, 3\)"),
    (word(36, "<q", 2**40), r"damaged: expected sizes of 1 to 2147483647, received \(1099511627776, 3\)"),
    (word(36, "<q", 2**30), r"damaged: expected at most 2147483647 elements in an array, received shape"),
    (word(36, "<q", 2**28), "cut off or damaged: expected 3221225472 bytes for the values of a float32 array of shape"),
    (word(52, "<i", 4), r"damaged: expected a device: one of .*cpu_shared.*, received \(4, 0\)"),
    (word(56, "<i", -1), r"damaged: expected a device: .*, received \(1, -1\)"),
    (word(60, "<i", 8), r"damaged: expected a dtype of .*12: 'bfloat16'.*, received 8"),
    (word(136, "<Q", 0), "a list without names: expected 2 names, as from nd.save or npx.save of a dict, received"),
    (word(144, "<Q", 2**62), r"damaged: expected at most 1024 bytes, received .* \(name 1 of 2\)"),
    (word(157, "<Q", 6), r"cut off or damaged: expected 6 bytes for a name, received 5 up to the end \(name 2 of 2\)"),
    (word(165, "<5s", b"first"), "damaged: expected every name once, received 'first' twice"),
    (word(165, "<5s", b"\xff\xfe\xfd12"), "damaged: expected UTF-8 without zero bytes"),
    (word(165, "<5s", b"oth\0r"), "damaged: expected UTF-8 without zero bytes"),
    (lambda data: data.append(0), "damaged: expected its end after byte .*, received 1 more bytes"),
]


@pytest.mark.parametrize(("change", "expected"), REFUSED)
def test_what_mxnet_would_not_write_is_refused(change, expected, tmp_path):
    """T58."""
    file = tmp_path / "a.params"
    data = written(file)
    change(data)
    file.write_bytes(bytes(data))
    for read in (read_arrays, describe_file):
        with pytest.raises(CheckpointError, match=expected) as caught:
            read(file)
        assert len(str(caught.value)) < 350 + len(str(file))


def test_every_length_but_the_whole_one_is_refused(tmp_path):
    file = tmp_path / "a.params"
    data = bytes(written(file))
    for length in range(len(data)):
        file.write_bytes(data[:length])
        with pytest.raises(CheckpointError):
            describe_file(file)


def shape_bytes(shape):
    return struct.pack(f"<i{len(shape)}q", len(shape), *shape)


@pytest.mark.parametrize(
    ("storage", "stored", "shape", "indices", "expected"),
    [
        (1, (2, 3), (4, 3), [(6, (2,))], ""),
        (1, (1, 3), (4, 3), [(6, (2,))], "stored values and indices of a row_sparse array of shape .* received .*1, 3"),
        (1, (2, 4), (4, 3), [(6, (2,))], "stored values and indices of a row_sparse array"),
        (1, (2, 3), (4, 3), [(6, (2, 1))], "stored values and indices of a row_sparse array"),
        (1, (2, 3), (4, 3), [(0, (2,))], "a dtype of {4: 'int32', 6: 'int64'}, received 0"),
        (2, (3,), (4, 3), [(6, (5,)), (4, (3,))], ""),
        (2, (2,), (4, 3), [(6, (5,)), (6, (3,))], "stored values and indices of a csr array"),
        (2, (3,), (4, 3), [(6, (4,)), (6, (3,))], "stored values and indices of a csr array"),
        (2, (3,), (4, 3, 1), [(6, (5,)), (6, (3,))], "stored values and indices of a csr array"),
    ],
)
def test_parts_of_a_sparse_array_that_do_not_fit_together(storage, stored, shape, indices, expected, tmp_path):
    header = struct.pack("<Ii", 0xF993FAC9, storage) + shape_bytes(stored) + shape_bytes(shape)
    header += struct.pack("<3i", 1, 0, 0)
    size = 4 * int(np.prod((np.prod(indices[-1][1]), *stored[1:])))
    for dtype, length in indices:
        header += struct.pack("<i", dtype) + shape_bytes(length)
        size += int(np.prod(length)) * (8 if dtype == 6 else 4)
    file = tmp_path / "a.params"
    file.write_bytes(struct.pack("<3Q", 0x112, 0, 1) + header + bytes(size) + struct.pack("<2Q", 1, 1) + b"x")
    if not expected:
        assert describe_file(file) == {"x": (shape, "float32")}
    else:
        with pytest.raises(CheckpointError, match=f"is damaged: expected {expected}"):
            describe_file(file)


@pytest.mark.parametrize(("stype", "indices"), [("row_sparse", [1, 400]), ("row_sparse", [3, 1]), ("csr", [0, 2, 99])])
def test_indices_outside_of_the_shape_never_reach_a_conversion(stype, indices, tmp_path):
    # the header is sound; written into a dense array, such an index would write outside of its memory
    file = tmp_path / "a.params"
    mx.nd.save(str(file), {"x": mx.nd.array(DENSE).tostype(stype)})
    data = file.read_bytes()
    place = len(data) - 8 - 9 - 8 * len(indices)
    file.write_bytes(data[:place] + struct.pack(f"<{len(indices)}q", *indices) + data[place + 8 * len(indices) :])
    assert describe_file(file) == {"x": ((4, 3), "float32")}
    with pytest.raises(CheckpointError, match=r"array 'x': expected ascending indices inside of shape \(4, 3\)"):
        read_arrays(file)


def test_a_file_that_changes_after_it_was_checked_is_not_believed(tmp_path):
    file = tmp_path / "a.params"
    mx.nd.save(str(file), {"x": mx.nd.arange(100000).reshape((100, 1000))})
    data = bytearray(file.read_bytes())
    with file.open("rb") as opened:
        array = params_format.Walk(opened, file).arrays()["x"]
        word(36, "<q", 2**30)(data)
        file.write_bytes(bytes(data))
        assert parameter_file._load(opened, file, "x", array).shape == (100, 1000)
        os.truncate(str(file), 1000)
        with pytest.raises(CheckpointError, match="is being changed by others: .* of 400000 bytes of 'x'"):
            parameter_file._load(opened, file, "x", array)


def test_what_is_no_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_arrays(tmp_path / "missing.params")
    with pytest.raises(CheckpointError, match="is no file, but a folder or a device"):
        read_arrays(tmp_path)
    os.mkfifo(str(tmp_path / "pipe"))
    with pytest.raises(CheckpointError, match="pipe is no file"):
        read_arrays(tmp_path / "pipe")


def headers(path):
    """(start, device, end) of each array's header in a sound file, and where its names begin."""
    with path.open("rb") as file:
        arrays = params_format.Walk(file, path, unnamed=True).arrays().values()
    places = [(one.offset - len(one.header), one.offset - 16 * len(one.parts) + 4, one.offset) for one in arrays]
    return places, max(one.offset + one.size for one in arrays)


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A folder, and the content of each kind of file with the places of its headers."""
    folder, kinds = tmp_path_factory.mktemp("files"), every_kind()
    del kinds["nothing"]
    kinds.update(big={"1.weight": mx.nd.ones((500, 784)), "2.weight": mx.nd.ones(10)}, list=[mx.nd.array(DENSE)] * 2)
    for name, arrays in kinds.items():
        mx.nd.save(str(folder / name), arrays)
    with mx.util.np_shape(True):
        mx.nd.save(str(folder / "numpy"), {"scalar": mx.nd.ones(()), "empty": mx.nd.ones((0, 3)), "x": mx.nd.ones(4)})
    return folder, [(path.read_bytes(), *headers(path)) for path in sorted(folder.iterdir())]


def read(reader, path):
    """What a reader returns, or the text of its refusal; and the most memory that it took meanwhile."""
    before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
    try:
        received = reader(path)
        mx.nd.waitall()
    except CheckpointError as error:
        received = str(error)
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return received, int(line.split()[1]) * 1024 - before


def assert_read_alike(received, arrays):
    """The reader without MXNet (`received`) and `read_arrays` (`arrays`) refuse a file, or read the same numbers."""
    if isinstance(received, str) or isinstance(arrays, str):
        assert isinstance(arrays, str) or "is sparse: read it with MXNet" in received, received
        assert isinstance(received, str), arrays
        return
    for name, array in arrays.items():
        with mx.util.np_shape(True):
            values = array.asnumpy()
        assert (values.shape, values.dtype) == (received[name].shape, received[name].dtype), name
        assert received[name].tobytes() == (values.view(np.uint8) != 0 if values.dtype == bool else values).tobytes()


@pytest.mark.skipif(sys.platform != "linux", reason="measures memory as Linux does")
@settings(max_examples=examples(800), deadline=5000)
@given(st.integers(0, 2**32))
def test_damaged_files_are_refused_or_are_what_mxnet_writes_at_the_cost_of_their_size(sound, seed):
    random_, (folder, files) = random.Random(seed), sound
    content, places, tail = random_.choice(files)
    content, file, aside = damaged(random_, content, places, tail), folder / "damaged", folder / "again"
    file.write_bytes(content)
    (received, cost), (arrays, other_cost) = read(params_format.read_numpy, file), read(read_arrays, file)
    assert max(cost, other_cost) <= 4 * len(content) + 32 * 2**20
    assert_read_alike(received, arrays)
    if isinstance(arrays, str):
        return
    with mx.util.np_shape(content[24:28] == struct.pack("<I", params_format.V3)):
        mx.nd.save(str(aside), arrays)
    again = bytearray(aside.read_bytes())
    for start, device, _ in headers(aside)[0] if arrays else ():
        again[device : device + 8] = content[device : device + 8]  # arrays are read to the CPU
        if again[start + 4]:  # nd.save takes the stored shape of a sparse array before it waits for it
            again[start + 12 : start + 20] = content[start + 12 : start + 20]
    assert again == content
