"""`save_net` and `load_net`: a whole net in a file, and files that are none."""

import hashlib
import json
import random
import zipfile

from built_nets import ready, stack
import mxkit
from mxkit.core.blocks import parameters_by_path
from mxkit.errors import ArchitectureError, CheckpointError, DeviceError, NotInitializedError
from mxkit.nets.architecture import describe
from mxkit.nets.saving import load_net, save_net
import mxnet as mx
from mxnet import gluon
from mxnet.gluon import nn
import numpy as np
import pytest

MEMBERS = ["manifest.json", "description.json", "net.params"]


def batch(*shape):
    return mx.nd.random.uniform(-1, 1, shape)


def small_net(activation="relu"):
    return ready(nn.Dense(4, activation=activation), nn.BatchNorm(), nn.Dense(2), initializer=mx.init.Normal(0.5))


def values(net):
    return {path: one.data(one.list_ctx()[0]).asnumpy().tobytes() for path, one in parameters_by_path(net).items()}


def trained(net, devices, batches=3):
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9})
    for _ in range(batches):
        with mx.autograd.record():
            losses = [(net(batch(3, 5).as_in_context(device)) ** 2).sum() for device in devices]
        mx.autograd.backward(losses)
        trainer.step(3 * len(devices))
    return net


def test_a_trained_and_hybridized_net_comes_back(tmp_path):
    net, x = small_net(), batch(6, 5)
    net.hybridize()
    trained(net, [mx.cpu()])
    path = save_net(tmp_path / "deep" / "net.mxk", net)
    assert [file.name for file in path.parent.iterdir()] == ["net.mxk"]
    found = load_net(path)
    assert values(found) == values(net)
    # one more update ends where the net's own ends
    found.hybridize()
    for one in (net, found):
        mxkit.seed_all(3)
        trained(one, [mx.cpu()])
    assert values(found) == values(net)
    assert found(x).asnumpy().tobytes() == net(x).asnumpy().tobytes()


def test_the_first_of_several_replicas_is_kept(tmp_path):
    # T59: Gluon's own mean over three replicas rounds
    devices = [mx.cpu(number) for number in range(3)]
    net = stack(nn.Dense(4, in_units=5), nn.BatchNorm(in_channels=4))
    net.initialize(ctx=devices)
    trained(net, devices)
    path = save_net(tmp_path / "net.mxk", net)
    assert values(load_net(path)) == values(net)
    spread = load_net(path, devices="cpu:2")
    assert spread[0].weight.list_ctx() == devices[:2]
    assert values(spread) == values(net)
    with pytest.raises(DeviceError):
        load_net(path, devices="cpu:x")


def test_shared_parameters_and_dtypes_are_kept(tmp_path):
    net = stack(nn.Embedding(6, 4), nn.Dense(6, flatten=False, in_units=4))
    shared = nn.Dense(6, flatten=False, in_units=6, activation="tanh")
    net.add(shared, shared)
    net.initialize()
    net.cast("float64")
    net[0].weight.grad_req = "null"
    x = mx.nd.array([[1, 5]])
    expected = net(x)
    path = save_net(tmp_path / "net.mxk", net)
    with zipfile.ZipFile(path) as archive:
        archive.extract("net.params", tmp_path)
    written = mx.nd.load(str(tmp_path / "net.params"))
    assert list(written) == ["0.weight", "1.weight", "1.bias", "2.weight", "2.bias"]
    found = load_net(path)
    assert found[2] is found[3]
    assert found[0].weight.grad_req == "null"
    assert found(x).dtype == np.float64
    assert found(x).asnumpy().tobytes() == expected.asnumpy().tobytes()


def test_it_is_a_zip_that_any_tool_reads(tmp_path):
    net = small_net()
    net(batch(2, 5))
    path = save_net(tmp_path / "net.mxk", net)
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist() == MEMBERS
        archive.extractall(tmp_path / "open")
        content = b"".join(archive.read(name) for name in MEMBERS)
    assert json.loads((tmp_path / "open" / "description.json").read_text()) == describe(net)
    other = small_net()
    other.load_parameters(str(tmp_path / "open" / "net.params"))
    assert values(other) == values(net)
    # the same net is the same file, and no class is named by its module
    assert save_net(tmp_path / "again.mxk", net).read_bytes() == path.read_bytes()
    assert b"mxnet.gluon" not in content
    assert b"__main__" not in content


@pytest.mark.parametrize("name", ["ssd", "yolo3", "centernet", "fcn", "deeplab", "pose"])
def test_small_nets_of_gluoncvs_classes_come_back(name, tmp_path):
    arguments = {} if name == "pose" else {"classes": ["cat", "dog"]}
    channels = (4, 6, 8, 8, 8) if name == "pose" else (4, 6, 8)
    net = mxkit.models.get_model(f"small_{name}", channels=channels, **arguments)
    x = mx.nd.random.uniform(shape=(1, 3, 64, 64))
    mxkit.initialize(net, devices="cpu", sample=x)
    loaded = mxkit.load_net(mxkit.save_net(tmp_path / "net.mxk", net))
    assert getattr(loaded, "classes", ["cat", "dog"]) == ["cat", "dog"]
    for ours, theirs in zip(net(x), loaded(x)):
        np.testing.assert_array_equal(ours.asnumpy(), theirs.asnumpy())
    with pytest.raises(ArchitectureError, match="changed since get_model made it, as finetune does.*load_parameters"):
        mxkit.save_net(tmp_path / "other.mxk", mxkit.finetune(net, 2))


def test_a_net_that_cannot_be_saved_leaves_the_file_as_it_was(tmp_path):
    for net in (mxkit.models.mlp(3), small_net()):
        with pytest.raises(NotInitializedError, match="run it once on a batch"):
            save_net(tmp_path / "net.mxk", net)
    assert list(tmp_path.iterdir()) == []
    net = small_net()
    net(batch(2, 5))
    path = save_net(tmp_path / "net.mxk", net)
    before = path.read_bytes()
    net.add(nn.HybridLambda(lambda F, x: x))
    with pytest.raises(ArchitectureError, match="3 .*HybridLambda"):
        save_net(path, net)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["net.mxk"]


def test_values_go_into_a_net_of_the_same_architecture_only(tmp_path):
    net, x = small_net(), batch(2, 5)
    net(x)
    path = save_net(tmp_path / "net.mxk", net)
    same = small_net()
    assert load_net(path, same) is same
    assert values(same) == values(net)
    # T56: load_parameters takes these values without a word
    other = small_net("tanh")
    other(x)
    before = values(other)
    with pytest.raises(CheckpointError, match="0: activation: 'tanh' here, 'relu' there"):
        load_net(path, other)
    assert values(other) == before
    same = small_net()
    same.cast("float64")
    with pytest.raises(CheckpointError, match="dtype"):
        load_net(path, same)
    assert same[0].weight._data is None


@pytest.fixture
def saved(tmp_path):
    net = small_net()
    net(batch(2, 5))
    return save_net(tmp_path / "net.mxk", net), values(net)


def members(path):
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def pack(path, contents, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in contents:
            archive.writestr(name, content)


def signed(contents, **changes):
    """A file as mxkit would sign it, with other contents: what a stranger can write."""
    manifest = json.loads(contents["manifest.json"])
    for name in MEMBERS[1:]:
        content = contents[name]
        manifest["files"][name] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    manifest.update(changes)
    return [("manifest.json", json.dumps(manifest)), *((name, contents[name]) for name in MEMBERS[1:])]


def test_every_mutation_is_an_error_or_the_same_net(saved, tmp_path):
    path, expected = saved
    content, choose = path.read_bytes(), random.Random(5)
    refused = 0
    for _ in range(100):
        bad = bytearray(content)
        kind = choose.randrange(4)
        place = choose.randrange(len(bad))
        if kind == 0:
            bad[place] ^= 1 << choose.randrange(8)
        elif kind == 1:
            del bad[place:]
        elif kind == 2:
            bad[place:place] = b"abc"
        else:
            del bad[place : place + choose.randrange(1, 40)]
        (tmp_path / "bad.mxk").write_bytes(bad)
        try:
            found = load_net(tmp_path / "bad.mxk")
        except CheckpointError:
            refused += 1
        else:
            assert values(found) == expected
    assert refused > 75


FLATTEN = b'{"format": 1, "net": {"class": "Flatten"}}'


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda all_: [*all_.items(), ("../evil.py", b"x")], "expected manifest.json, description.json, net.params"),
        (lambda all_: [(f"/{name}", content) for name, content in all_.items()], "expected manifest.json"),
        (lambda all_: list(all_.items())[:2], "expected manifest.json"),
        (lambda all_: [*all_.items()][::-1], "expected manifest.json"),
        (lambda all_: [], "expected manifest.json"),
        (lambda all_: signed(all_, format=2), "format 1; received"),
        (lambda all_: signed(all_, files=[]), "damaged"),
        (lambda all_: signed(all_, files={}), "damaged"),
        (lambda all_: signed({**all_, "description.json": b"{"}), "damaged"),
        (lambda all_: signed({**all_, "description.json": b"[" * 100_000}), "damaged"),
        (lambda all_: signed({**all_, "net.params": b"x" * 64}), "no parameter file"),
        (lambda all_: signed({**all_, "description.json": FLATTEN}), "do not fit the net"),
        (lambda all_: signed({**all_, "description.json": FLATTEN.replace(b"Flatten", b"os.system")}), "unknown class"),
        (lambda all_: [("manifest.json", b"[1]"), *list(all_.items())[1:]], "format 1; received"),
        (lambda all_: [("manifest.json", b"\xff"), *list(all_.items())[1:]], "damaged"),
        (lambda all_: [*list(all_.items())[:2], ("net.params", all_["net.params"][:-1] + b"!")], "sizes and digests"),
    ],
)
def test_what_save_net_did_not_write_is_refused(change, text, saved, tmp_path):
    path, _ = saved
    pack(tmp_path / "bad.mxk", change(members(path)))
    with pytest.raises((CheckpointError, ArchitectureError), match=text):
        load_net(tmp_path / "bad.mxk")
    assert not (tmp_path / "evil.py").exists()
    assert not (tmp_path.parent / "evil.py").exists()


def test_zip_bombs_are_refused(saved, tmp_path):
    contents, bad = members(saved[0]), tmp_path / "bad.mxk"
    pack(bad, {**contents, "net.params": bytes(2**26)}.items(), zipfile.ZIP_DEFLATED)
    assert bad.stat().st_size < 2**20
    with pytest.raises(CheckpointError, match="without compression"):
        load_net(bad)
    pack(bad, {**contents, "manifest.json": b" " * (2**26 + 1)}.items())
    with pytest.raises(CheckpointError, match="at most 67108864 bytes of manifest.json"):
        load_net(bad)


def test_folders_and_missing_files(tmp_path):
    with pytest.raises(CheckpointError, match="is no file"):
        load_net(tmp_path)
    with pytest.raises(FileNotFoundError):
        load_net(tmp_path / "none.mxk")
    (tmp_path / "text.mxk").write_text("hello")
    with pytest.raises(CheckpointError, match="no file of save_net"):
        load_net(tmp_path / "text.mxk")
    net = ready(nn.Dense(1, in_units=1))
    (tmp_path / "folder.mxk").mkdir()
    with pytest.raises(OSError, match="folder"):
        save_net(tmp_path / "folder.mxk", net)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["folder.mxk", "text.mxk"]
