"""Parameter files are read, checked and converted without MXNet, and hold what MXNet reads in them."""

import json
import struct

from files_of_old_mxnet import file_bytes, run_without_mxnet, some_arrays
import mxkit
from mxkit.errors import CheckpointError
from mxkit.exporting import params
from mxkit.exporting.params import npz_bytes, safetensors_bytes
from mxkit.storage import params_format
from mxkit.storage.params_format import BFLOAT16, read_numpy, widened
import mxnet as mx
import numpy as np
import pytest
from safetensors.numpy import load, load_file


def assert_same(received, expected):
    assert list(received) == list(expected)
    for name, array in expected.items():
        assert (received[name].shape, received[name].dtype) == (array.shape, array.dtype), name
        assert received[name].tobytes() == array.tobytes(), name


def test_arrays_without_dimensions_and_transposed_ones_stay():
    arrays = {"x": np.array(2.5, "f"), "y": np.arange(6.0).reshape(2, 3).T}
    assert_same(dict(sorted(load(safetensors_bytes(arrays)).items())), arrays)


def test_the_tables_are_those_of_mxnet():
    expected = {
        number: (params_format.dtype_name(dtype), np.dtype(dtype).itemsize)
        for number, dtype in mx.nd.ndarray._DTYPE_MX_TO_NP.items()
        if dtype is not None
    }
    assert expected == params_format.DTYPES
    assert mx.Context.devtype2str == params_format.DEVICES
    assert mx.nd.ones(1).astype(BFLOAT16).dtype == BFLOAT16


@pytest.mark.parametrize("version", ["oldest", "V1", "V2", "V3"])
def test_every_version_is_converted_in_a_fresh_interpreter_without_mxnet(version, tmp_path):
    arrays = some_arrays(version)
    file = tmp_path / "old.params"
    file.write_bytes(file_bytes(version, arrays))
    assert_same(read_numpy(file), arrays)
    with mx.util.np_shape(version == "V3"):
        assert_same({name: array.asnumpy() for name, array in mx.nd.load(str(file)).items()}, arrays)
    target = "new.npz" if version in ("V1", "V3") else "new.safetensors"
    done = run_without_mxnet(tmp_path, "mxkit.exporting.params", file, "--to", target)
    assert done.returncode == 1, done.stderr  # an array has NaN
    assert f"{len(arrays)} arrays, " in done.stdout
    assert ("format oldest, ndim first" if version == "oldest" else f"format {version}") in done.stdout
    assert "names: arg:/aux: (export, Module)" in done.stdout
    assert "1 NaN, 1 infinite" in done.stdout
    assert "1 arrays have values that are not finite" in done.stdout
    stripped = {name[4:]: array for name, array in arrays.items()}
    if target == "new.npz":
        with np.load(str(tmp_path / target), allow_pickle=False) as loaded:
            assert_same({name: loaded[name] for name in loaded.files}, stripped)
    else:
        loaded = load_file(tmp_path / target)
        assert_same({name: loaded[name] for name in stripped}, stripped)


def test_bfloat16_is_widened_exactly_and_stays_bfloat16_in_safetensors(tmp_path):
    numbers = mx.nd.array([0.1, -3.0, 1e38, float("nan"), float("-inf")]).astype(BFLOAT16)
    file = tmp_path / "a.params"
    mx.nd.save(str(file), {"x": numbers, "y": mx.nd.ones(2)})
    arrays = read_numpy(file)
    np.testing.assert_array_equal(widened(arrays["x"]), numbers.astype("float32").asnumpy())
    assert widened(np.array(0x3FC0, np.uint16).view(BFLOAT16)) == np.float32(1.5)
    (tmp_path / "a.npz").write_bytes(npz_bytes(arrays))
    with np.load(str(tmp_path / "a.npz"), allow_pickle=False) as loaded:
        np.testing.assert_array_equal(loaded["x"], numbers.astype("float32").asnumpy())
    content = safetensors_bytes(arrays)
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    assert length % 8 == 0
    assert (header["x"]["dtype"], header["y"]["dtype"]) == ("BF16", "F32")
    begin, end = header["x"]["data_offsets"]
    assert content[8 + length :][begin:end] == arrays["x"].tobytes()
    begin, end = header["y"]["data_offsets"]
    assert content[8 + length :][begin:end] == np.ones(2, np.float32).tobytes()


def test_a_list_without_names_is_read_by_the_command_only(tmp_path, capsys):
    file = tmp_path / "list"
    mx.nd.save(str(file), [mx.nd.ones(2), mx.nd.zeros(3)])
    with pytest.raises(CheckpointError, match="a list without names"):
        read_numpy(file)
    assert list(read_numpy(file, unnamed=True)) == ["0", "1"]
    assert command(file, "--to", tmp_path / "a.npz") == 0
    with np.load(str(tmp_path / "a.npz"), allow_pickle=False) as loaded:
        assert {name: loaded[name].tolist() for name in loaded.files} == {"0": [1, 1], "1": [0, 0, 0]}
    assert "names: other" in capsys.readouterr().out


def command(*words):
    """Run the command here; return its exit code or its error."""
    with pytest.raises(SystemExit) as caught:
        params.main([str(word) for word in words])
    return caught.value.code


def test_the_command_lists_a_net(tmp_path, capsys):
    net = mxkit.models.mlp(2, hidden=[3])
    mxkit.initialize(net)
    net(mx.nd.ones((1, 4)))
    file = tmp_path / "net.params"
    net.save_parameters(str(file))
    assert command(file) == 0
    assert capsys.readouterr().out.splitlines() == [
        "name      shape   dtype    bytes",
        "1.weight  (3, 4)  float32     48",
        "1.bias    (3,)    float32     12",
        "2.weight  (2, 3)  float32     24",
        "2.bias    (2,)    float32      8",
        f"{file}: 4 arrays, 92 bytes; format V2; names: structural (save_parameters)",
        "all values are finite",
    ]
    net.collect_params().save(str(file))
    assert command(file, "--to", tmp_path / "a.safetensors") == 0
    printed = capsys.readouterr().out
    assert "names: prefixed (collect_params)" in printed
    assert "a.safetensors: 4 arrays, " in printed
    assert_same(load_file(tmp_path / "a.safetensors"), dict(sorted(read_numpy(file).items())))


def test_the_command_refuses(tmp_path, capsys):
    file, target = tmp_path / "a.params", tmp_path / "a.safetensors"
    mx.nd.save(str(file), {"arg:x": mx.nd.ones(1), "aux:x": mx.nd.ones(1)})
    assert "is not converted: 'aux:x' and another array would both be named 'x'" in command(file, "--to", target)
    mx.nd.save(str(file), {"__metadata__": mx.nd.ones(1)})
    assert "an array is named '__metadata__'" in command(file, "--to", target)
    mx.nd.save(str(file), {"x": mx.nd.ones(1), "x.npy": mx.nd.ones(1)})
    assert "np.load cannot tell 'x' from 'x.npy'" in command(file, "--to", tmp_path / "a.npz")
    file.write_bytes(b"<html>")
    assert "a.params is no parameter file: expected 0x112" in command(file, "--to", target)
    assert "No such file" in command(tmp_path / "b.params")
    assert not target.exists()
    assert command(file, "--to", tmp_path / "a.onnx") == 2
    assert "expected a file that ends in .safetensors or .npz; received" in capsys.readouterr().err


def test_names_that_would_move_the_cursor_are_printed_as_escapes(tmp_path, capsys):
    file = tmp_path / "a.params"
    mx.nd.save(str(file), {"a\x1b[2J": mx.nd.ones(1), "größe": mx.nd.ones(1)})
    command(file)
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert "a\\x1b[2J" in printed
    assert "größe" in printed


@pytest.mark.parametrize("stype", ["row_sparse", "csr"])
def test_sparse_arrays_are_refused(stype, tmp_path):
    file = tmp_path / "a.params"
    mx.nd.save(str(file), {"x": mx.nd.array([[0, 0], [1, 0]]).tostype(stype)})
    with pytest.raises(CheckpointError, match="array 'x' is sparse: read it with MXNet"):
        read_numpy(file)


def test_a_shape_without_elements_that_numpy_cannot_hold(tmp_path):
    file = tmp_path / "a.params"
    file.write_bytes(file_bytes("V3", {"x": np.zeros((0, 1, 1, 1), np.float32)}))
    data = bytearray(file.read_bytes())
    data[44:68] = struct.pack("<3q", *[2**31 - 1] * 3)
    file.write_bytes(data)
    with pytest.raises(CheckpointError, match="expected at most 2147483647 elements in an array"):
        read_numpy(file)
