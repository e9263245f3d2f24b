"""Checkpoints are whole, verified and loaded all at once."""

import hashlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import threading
import time

from built_nets import ready
import comparing
from comparing import X, Y, assert_equal, values
from hypothesis import given, settings
from hypothesis import strategies as st
import mxkit
from mxkit.errors import CheckpointError, MxkitError, NotInitializedError
from mxkit.storage import directory as module
from mxkit.storage.directory import BackgroundWriter, checkpoint_paths, find_checkpoint, only_writer
import mxnet as mx
from mxnet import gluon
import pytest
from sharing import examples


def net_of(units=4, devices="cpu", seed=0):
    mxkit.seed_all(seed)
    net = ready(mxkit.models.mlp(3, hidden=(units,)), devices=devices)
    net(mx.nd.ones((1, 5)).as_in_context(net.collect_params().list_ctx()[0]))
    return net


# the mean (w + w + w) / 3, which Gluon's save_parameters stores, rounds (T59)
@pytest.mark.parametrize(("devices", "to"), [("cpu:2", "cpu:2"), ("cpu:3", "cpu"), ("cpu", None)])
def test_round_trip_on_every_replica(devices, to, tmp_path):
    """T59."""
    net = net_of(units=64, devices=devices)
    saved = mxkit.save_checkpoint(tmp_path / "a" / "b", net, step=12, state={"epoch": 3})
    assert saved.name == "step-00000012"
    other = mxkit.models.mlp(3, hidden=(64,)) if to is None else net_of(units=64, devices=to, seed=1)
    found = mxkit.load_checkpoint(tmp_path / "a" / "b", other, devices=to or "cpu:2")
    assert (found.step, found.manifest["state"]) == (12, {"epoch": 3})
    expected = values(net)
    assert_equal(values(other), {name: expected[f"{name.split('@')[0]}@0"] for name in values(other)})
    assert len(values(other)) == 4 * len(mxkit.devices(to or "cpu:2"))
    plain = net_of(units=64, seed=2)
    plain.load_parameters(str(saved / "net.params"))  # Gluon reads it too
    assert_equal(values(plain), {name: expected[name] for name in values(plain)})


def test_the_newest_whole_one_is_found(tmp_path):
    net, other = net_of(), net_of(seed=2)
    for step, saved in ((9, net), (100000000, net), (10, other), (10, net)):  # one of the same step is replaced
        mxkit.save_checkpoint(tmp_path, saved, step=step)
    (tmp_path / "step-notanumber").mkdir()
    assert [path.name for path in checkpoint_paths(tmp_path)] == ["step-100000000", "step-00000010", "step-00000009"]
    assert find_checkpoint(tmp_path).step == 100000000
    (tmp_path / "step-100000000" / "net.params").write_bytes(b"short")
    with pytest.warns(UserWarning, match="skipped a broken checkpoint: .*net.params is damaged: expected"):
        assert mxkit.load_checkpoint(tmp_path, other).step == 10
    assert_equal(values(other), values(net))


DAMAGES = [
    (lambda path: (path / "net.params").unlink(), "net.params is missing"),
    (lambda path: (path / "run.json").unlink(), "run.json is missing"),
    (lambda path: (path / "run.json").write_text("{"), "run.json is damaged"),
    (lambda path: flip(path / "run.json", -3), "run.json is damaged: .* digest of its rest"),
    (lambda path: sign(path, '"step": 1'), "run.json cannot be read: "),
    (lambda path: sign(path, '"a": ' + "[" * 100000), "run.json cannot be read: "),
    (lambda path: edit(path, format=2), "has format 2, not 1: use a newer mxkit"),
    (lambda path: edit(path, step=-1), "run.json is no manifest of this checkpoint: .*'step': -1"),
    (lambda path: edit(path, step=2), "no manifest of this checkpoint: .*'step': 2"),
    (lambda path: edit(path, files={"net.params": {}, "/etc/passwd": {}}), "no manifest .*/etc/passwd"),
    (lambda path: edit(path, files={"net.params": {"sha256": ""}}), "net.params is damaged: expected .*'sha256': ''"),
    (lambda path: edit(path, score={"mode": "best", "value": 1}), "no manifest of this checkpoint: .*best"),
    (lambda path: edit(path, run=[1]), r"no manifest of this checkpoint: .*'run': \[1\]"),
    (lambda path: flip(path / "net.params", 40), "net.params is damaged"),
    (lambda path: cut(path / "net.params", 1), "net.params is damaged: expected .*size.*received {'size': 391"),
    (lambda path: link(path / "net.params"), "net.params is missing, or a symbolic link"),
    (lambda path: link(path / "run.json"), "run.json is missing, or a symbolic link, which is not followed"),
    (lambda path: link(path), "step-00000001 is missing, or a symbolic link"),
]


def test_damage_is_told_before_mxnet_reads_a_byte(tmp_path, monkeypatch):
    """T58."""
    sound = mxkit.save_checkpoint(tmp_path / "sound", net_of(), step=1)
    other = net_of(seed=1)
    before = values(other)
    monkeypatch.setattr(mx.nd, "load_frombuffer", None)
    for number, (damage, expected) in enumerate(DAMAGES):
        damaged = tmp_path / str(number) / sound.name
        shutil.copytree(str(sound), str(damaged))
        damage(damaged)
        with pytest.raises(CheckpointError, match=expected):
            mxkit.load_checkpoint(damaged, other)
    assert_equal(values(other), before)


def edit(path, **changes):
    """Change what run.json says, with a digest that matches."""
    manifest = json.loads((path / "run.json").read_text())
    del manifest["sha256"]
    sign(path, json.dumps({**manifest, **changes})[1:])


def sign(path, rest):
    digest = hashlib.sha256(rest.encode()).hexdigest()
    (path / "run.json").write_text(f'{{"sha256": "{digest}",\n{rest}')


def cut(path, length):
    path.write_bytes(path.read_bytes()[:-length])


def link(path):
    """Move something elsewhere, and lead there."""
    elsewhere = path.parent / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


def flip(path, position):
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(bytes(content))


def test_a_net_that_does_not_fit_is_left_as_it_was(tmp_path):
    """T51."""
    saved = mxkit.save_checkpoint(tmp_path, net_of(units=4), step=1)
    other = net_of(units=6)
    before = values(other)
    with pytest.raises(CheckpointError, match=r"(?s)00001 does not fit the net.*shape: 1.weight is \(4, 5\) in"):
        mxkit.load_checkpoint(saved, other)
    assert_equal(values(other), before)


def test_nothing_is_loaded_or_saved_where_nothing_is(tmp_path):
    with pytest.raises(CheckpointError, match="no whole checkpoint in .*: expected folders named step-00000000"):
        mxkit.load_checkpoint(tmp_path, net_of())
    net = ready(mxkit.models.mlp())
    with pytest.raises(NotInitializedError, match="'1.weight' has no value yet. Initialize the net and run it once"):
        mxkit.save_checkpoint(tmp_path, net, step=0)
    assert list(tmp_path.iterdir()) == []


FULL = """
import resource, signal, sys, mxkit, mxnet as mx
net = mxkit.models.softmax_regression(3); mxkit.initialize(net); net(mx.nd.ones((1, 100)))
mxkit.save_checkpoint(sys.argv[1], net, step=1)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))
mx.nd.save(sys.argv[1] + "/silent.params", {"a": mx.nd.ones(300)})
try:
    mxkit.save_checkpoint(sys.argv[1], net, step=2)
except OSError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits the size of files as Linux does")
def test_a_full_disk_is_told_and_the_checkpoint_before_it_stays(tmp_path, forks):
    """T59."""
    script, folder = tmp_path / "script.py", tmp_path / "run"
    script.write_text(FULL)
    done = forks.run(script, str(folder))
    assert done.returncode == 0, done.stderr
    # nd.save alone cut its file off without an error
    assert (folder / "silent.params").stat().st_size == 1024
    assert "net.params could not be written whole; is the disk full?" in done.stdout
    assert sorted(path.name for path in folder.iterdir()) == ["silent.params", "step-00000001"]
    assert find_checkpoint(folder).step == 1


WORDS = [None, True, False, 0, -1, 1, 2**31, 2**63, 10**30, 1e308, float("nan"), "", "x", "../x", [], {}, [[]]]


def places_in(value):
    """(container, key) of everything inside of a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield value, key
        yield from places_in(inner)


def change_values(random_, manifest):
    """Change values of run.json."""
    parts = [manifest, manifest["run"], manifest["optimizer"], manifest["files"]]
    for _ in range(random_.choice([1, 1, 1, 2, 5])):
        places = [*places_in(random_.choice(parts))]
        container, key = random_.choice(places) if places else ({"x": 0}, "x")
        how = random_.random()
        if how < 0.2:
            del container[key]
        elif how < 0.6 or not isinstance(container[key], (int, float)):
            container[key] = random_.choice(WORDS)
        else:
            container[key] += random_.choice([1, -1, 0.5, 1e6])


def change_arrays(random_, directory, manifest):
    """Write sound arrays of other names, shapes, dtypes or values."""
    name = random_.choice(sorted(manifest["files"]))
    held = mx.nd.load(str(directory / name))
    chosen = random_.choice(sorted(held))
    array = held.pop(chosen)
    suffix = random_.choice(["x", "@1", ":0", "@99999999999999999999", "@-1"])
    changed = [{chosen + suffix: array}, {chosen: mx.nd.concat(array, array, dim=0)}, {chosen: array * 2 + 1}, {}]
    changed += [{chosen: array.astype(random_.choice(["float64", "float16", "int32"]))}]
    changed += [{chosen: array, f"replica:{chosen}@1": array, "replica:@": array, "more": array}]
    changed += [{chosen: array.tostype(random_.choice(["csr", "row_sparse"]))}] if array.ndim == 2 else []
    mx.nd.save(str(directory / name), {**held, **random_.choice(changed)})
    content = (directory / name).read_bytes()
    manifest["files"][name] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A checkpoint of `fit` inside an epoch, with all its files."""
    net, folder = comparing.make_net("cpu:2", norm=True), tmp_path_factory.mktemp("trained")
    stopping = mxkit.callbacks.EarlyStopping("valid_loss", "min", patience=9, restore_best=True)
    options = {"callbacks": [mxkit.callbacks.EMA(0.9), stopping], "metrics": ["accuracy"], "progress": False}
    data = mxkit.data.ArrayLoader(X, Y, 4, shuffle=True, seed=1)
    options.update(valid=[(X, Y)], seed=5, checkpoint=folder, epochs="14 updates")
    mxkit.fit(net, data, loss="softmax_ce", trainer=adam(net), **options)
    return folder / "step-00000014"


def adam(net):
    return gluon.Trainer(net.collect_params(), "adam", update_on_kvstore=False)


@settings(max_examples=examples(200))
@given(st.integers(0, 2**32))
def test_signed_checkpoints_with_other_content_are_refused_or_loaded_as_they_say(trained, seed):
    """Digests fit again after each change."""
    random_, directory = random.Random(seed), trained.parent / "changed" / trained.name
    shutil.rmtree(str(directory.parent), ignore_errors=True)
    shutil.copytree(str(trained), str(directory))
    manifest = json.loads((directory / "run.json").read_text())
    del manifest["sha256"]
    if random_.random() < 0.7:
        change_values(random_, manifest)
    else:
        change_arrays(random_, directory, manifest)
    sign(directory, json.dumps(manifest)[1:])
    net = comparing.make_net("cpu:2", norm=True, seed=4)
    before = values(net)
    try:
        mxkit.load_checkpoint(directory, net, adam(net))
    except MxkitError:
        assert_equal(values(net), before)
        return
    loaded, said = values(net), mx.nd.load(str(directory / "net.params"))
    assert_equal({path: loaded[f"{path}@0"] for path in said}, {path: array.asnumpy() for path, array in said.items()})


def _dies_beside_a_worker(folder, pipe):
    with only_writer(folder):
        worker = os.fork()  # as a DataLoader does
        if not worker:
            time.sleep(60)  # it outlives its process; the test kills it
            os._exit(0)
        pipe.send(worker)
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_lock_ends_with_its_process_though_a_forked_worker_lives_on(tmp_path):
    refused = pytest.raises(CheckpointError, match=rf"^process {os.getpid()} on .* writes into")
    with only_writer(tmp_path), refused, only_writer(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []
    here, there = multiprocessing.Pipe()
    dying = multiprocessing.get_context("fork").Process(target=_dies_beside_a_worker, args=(tmp_path, there))
    dying.start()
    worker = here.recv()
    dying.join()
    try:
        with only_writer(tmp_path):
            os.kill(worker, 0)
    finally:
        os.kill(worker, signal.SIGKILL)


def test_an_error_of_the_writer_comes_out_once_also_after_ctrl_c_in_a_wait(monkeypatch):
    def interrupted(jobs):
        raise KeyboardInterrupt

    released, writer = threading.Event(), BackgroundWriter()
    writer.wait()
    writer.start(lambda: released.wait(60) and 1 / 0)
    with monkeypatch.context() as patched:
        patched.setattr(module, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            writer.wait()
    assert writer.busy
    released.set()
    with pytest.raises(ZeroDivisionError):
        writer.wait()
    writer.wait()
    assert not writer.busy
