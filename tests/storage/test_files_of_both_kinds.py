"""Files of nets of mx.np and of mx.nd have the same bytes, and are loaded into nets of both kinds."""

from functools import partial

from built_nets import hybrid_net, imported, ready, stack
import comparing
from comparing import X, Y, assert_equal, values
import mxkit
from mxkit.core.arrays import switches
from mxkit.errors import CheckpointError
import mxnet as mx
from mxnet import gluon, npx
from mxnet.gluon import nn, rnn
import numpy as np
import pytest
from sharing import Kind

make_net = partial(comparing.make_net, norm=True)


def test_the_files_of_a_run_have_the_same_bytes_whatever_its_kind(tmp_path):
    """Runs of both kinds go on from files of mx.nd in test_golden.py."""
    for kind in (Kind(False), Kind(True)):
        with kind.switches():
            mxkit.fit(
                kind.net(lambda: make_net(devices="cpu:2")),
                mxkit.data.ArrayLoader(X, Y, 4, shuffle=True, seed=1),
                loss="softmax_ce",
                trainer="adam",
                epochs="14 updates",
                valid=[(X, Y)],
                metrics=["accuracy", "f1"],
                callbacks=[
                    mxkit.callbacks.EMA(0.9),
                    mxkit.callbacks.EarlyStopping("valid_loss", "min", patience=9, restore_best=True),
                ],
                seed=5,
                checkpoint=tmp_path / f"numpy {kind.numpy}",
                progress=False,
            )
    for name in ("net.params", "optimizer.params", "state.params"):
        one, other = (path.read_bytes() for path in sorted(tmp_path.glob(f"*/step-00000014/{name}")))
        assert one == other


@pytest.mark.parametrize("switch", [False, True])
def test_a_net_file_gives_a_net_of_its_kind_or_of_the_switch(switch, kind, tmp_path):
    net = kind.net(make_net)
    with switches(switch):
        path = mxkit.save_net(tmp_path / "a.mxk", net)
        loaded = mxkit.load_net(path)
        into = mxkit.load_net(path, kind.net(lambda: make_net(seed=4)))
    if not kind.numpy:
        assert path.read_bytes() == mxkit.save_net(tmp_path / "b.mxk", make_net()).read_bytes()
    assert Kind(kind.numpy or switch).holds(loaded[0].weight.data())
    assert kind.holds(into[0].weight.data())
    for one in (loaded, into):
        assert_equal(values(one), values(net))


def test_a_loaded_net_has_the_kind_of_its_graph_or_of_its_other_parameters(tmp_path):
    with switches(True):
        mxkit.export(Kind(True).net(make_net), tmp_path / "net")
        body = mxkit.load_exported(tmp_path / "net")
        outputs = mxkit.predict(body, X).asnumpy()
        waiting = stack(nn.Dense(6, in_units=5, activation="tanh"), nn.BatchNorm(in_channels=6), nn.Dense(3))
        waiting.initialize()  # the last weight has no value yet
        waiting[0].weight.data()
    loaded = mxkit.load_net(mxkit.save_net(tmp_path / "a.mxk", body))
    mxkit.load_checkpoint(mxkit.save_checkpoint(tmp_path, make_net(), step=1), waiting)
    for net in (loaded, waiting):
        assert all(isinstance(one.data(), mx.np.ndarray) for one in net.collect_params().values())
        np.testing.assert_array_equal(mxkit.predict(net, X).asnumpy(), outputs)


def files_of(folder):
    """Files of one net, by all who write some."""
    net, other = make_net(), Kind(True).net(make_net)
    with switches(True):
        other.save_parameters(str(folder / "save_parameters under set_np"))
        npx.save(str(folder / "npx.save"), {path: one.data() for path, one in mxkit.parameters(other).items()})
        mxkit.save_checkpoint(folder, other, step=1)
    net.save_parameters(str(folder / "save_parameters"))
    mx.nd.save(str(folder / "full names"), {name: one.data() for name, one in net.collect_params().items()})
    (folder / "step-00000001" / "net.params").rename(folder / "checkpoint")
    return values(net)


@pytest.mark.parametrize("switch", [False, True])
def test_parameter_files_of_both_kinds_are_loaded(switch, kind, tmp_path):
    expected = files_of(tmp_path)
    files = [path for path in tmp_path.iterdir() if path.is_file()]
    assert len(files) == 5
    for file in files:
        net = kind.net(lambda: make_net(seed=4))
        empty = stack(nn.Dense(6, activation="tanh"), nn.BatchNorm(), nn.Dense(3))
        with switches(switch):
            mxkit.load_parameters(net, file)
            mxkit.load_parameters(empty, file)
        assert kind.holds(net[0].weight.data())
        assert Kind(switch).holds(empty[0].weight.data())
        for one in (net, empty):
            assert_equal(values(one), expected)


def test_mxnet_reads_a_checkpoint_under_either_switch(kind, tmp_path):
    """T156."""
    with kind.switches():
        saved = mxkit.save_checkpoint(tmp_path, kind.net(make_net), step=1) / "net.params"
        path = tmp_path / "plain.params"
        kind.net(make_net).save_parameters(str(path))
    for other in (Kind(False), Kind(True)):
        net = other.net(lambda: make_net(seed=4))
        with other.switches():
            net.load_parameters(str(saved))
            assert_equal(values(net), values(make_net()))
    if kind.numpy:  # what `save_parameters` writes under `npx.set_np()`, MXNet reads there only; mxkit anywhere
        with pytest.raises(mx.MXNetError, match="saved in np shape semantics"):
            make_net().load_parameters(str(path))


class Scaled(gluon.HybridBlock):
    """Has a constant without axes, which mx.nd does not have, and trains a number without axes."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.dense = nn.Dense(3, in_units=5)
            self.scale = self.params.get_constant("scale", mx.np.array(2.0))
            self.temperature = self.params.get("temperature", shape=(), init="ones")

    def hybrid_forward(self, F, x, scale, temperature):
        return self.dense(x) * scale * temperature


@pytest.mark.parametrize("switch", [False, True])
def test_arrays_without_axes_are_saved_and_loaded_with_the_optimizer_s_state(switch, tmp_path):
    def fit(net, trainer, **arguments):
        mxkit.fit(net, [(X, Y)], loss="softmax_ce", trainer=trainer, progress=False, **arguments)

    with switches(True):
        net, other, new = Scaled(), Scaled(), Scaled()
        for one in (net, other):
            mxkit.initialize(one)
        net.scale.data()[()] = 3
    trainer, resumed = (gluon.Trainer(one.collect_params(), "adam") for one in (net, other))
    with switches(switch):
        fit(net, trainer, epochs=2, checkpoint=tmp_path)
        mxkit.load_checkpoint(tmp_path, other, resumed)
        if switch:
            mxkit.load_checkpoint(tmp_path, new)
            assert_equal(values(new), values(net))
        else:
            text = r"only for mx.np: scale is \(\) in the file; call npx.set_np\(\)"
            with pytest.raises(CheckpointError, match=text):
                mxkit.load_checkpoint(tmp_path, new)
            assert new.dense.weight._data is None
        for one, its in ((net, trainer), (other, resumed)):
            fit(one, its, epochs=1)
        mxkit.export(net, tmp_path / "net")
        outputs = [mxkit.predict(one, X).asnumpy() for one in (net, other, mxkit.load_exported(tmp_path / "net"))]
    assert_equal(values(other), values(net))
    assert net.temperature.data().item() != 1
    assert net.scale.data().item() == 3
    for one in outputs[1:]:
        np.testing.assert_array_equal(one, outputs[0])


@pytest.mark.parametrize("switch", [False, True])
def test_an_export_has_the_kind_of_its_net_and_is_read_under_both_switches(switch, kind, tmp_path):
    net = kind.net(make_net)
    with kind.switches():
        expected = net(kind.of(X)).asnumpy()
        net.hybridize()
        net(kind.of(X))
        net.export(str(tmp_path / "gluon"))
    with switches(switch):
        mxkit.export(net, tmp_path / "mxkit")
    with kind.switches():  # plain Gluon reads files under the switch of their net
        np.testing.assert_array_equal(imported(tmp_path / "mxkit")(kind.of(X)).asnumpy(), expected)
    for name in ("gluon", "mxkit"):
        with switches(switch):
            block = mxkit.load_exported(tmp_path / name)
            outputs = mxkit.predict(block, X)
        # an nd net's graph becomes a net of mx.np under `npx.set_np()`; that of an mx.np net always is one
        expected_kind = Kind(kind.numpy or switch)
        assert expected_kind.holds(outputs)
        assert all(map(expected_kind.holds, (one.data() for one in block.collect_params().values())))
        np.testing.assert_array_equal(outputs.asnumpy(), expected)
        mxkit.export(block, tmp_path / "again", overwrite=True)
        with switches(switch):
            again = mxkit.predict(mxkit.load_exported(tmp_path / "again"), X)
        np.testing.assert_array_equal(again.asnumpy(), expected)


@pytest.mark.parametrize("devices", ["cpu", "cpu:2"])
def test_a_block_of_imports_has_the_kind_of_its_graph(tmp_path, devices):
    """T158."""
    with switches(True):
        mxkit.export(Kind(True).net(make_net), tmp_path / "net")
        nets = []
        for body in (imported(tmp_path / "net"), mxkit.load_exported(tmp_path / "net")):
            net = stack(body, nn.Dense(2, in_units=3))
            net[1].initialize()
            assert isinstance(net(mx.np.array(X)), mx.np.ndarray)
            nets.append(net)
    nets[1][1].weight.set_data(nets[0][1].weight.data())
    outputs = []
    with switches(True):
        nets[1].save_parameters(str(tmp_path / "both.params"))
    for net in nets:
        mxkit.load_parameters(net, tmp_path / "both.params")
        mxkit.to(net, devices)
        assert isinstance(mxkit.predict(net, X), mx.np.ndarray)
        mxkit.freeze(net, "*.bias")
        mxkit.unfreeze(net)
        batches = [(X, np.arange(len(X)) % 2)]
        mxkit.fit(net, batches, loss="softmax_ce", trainer=("adam", {"learning_rate": 0.1}), epochs=3, progress=False)
        outputs.append(mxkit.predict(net, X).asnumpy())
    np.testing.assert_array_equal(*outputs)


def test_a_net_of_numpy_with_loaded_ndarrays_is_refused_with_the_way_out(tmp_path):
    """T158."""
    file = str(tmp_path / "dense.params")
    with switches(True):
        net = ready(nn.Dense(2, in_units=3), nn.Dense(2, in_units=2))
        net.add(nn.Dense(2, in_units=2, prefix="new_"))
        npx.save(file, {"new_weight": mx.np.ones((2, 2)), "new_bias": mx.np.ones(2)})
        net[2].collect_params().load(file)
        with pytest.raises(
            ValueError, match=r"two kinds of parameters.*collect_params\(\).load .* mxkit.load_parameters"
        ):
            mxkit.predict(net, X)


def unrolled():
    def forward(net, F, x):
        return net.output(net.cell.unroll(5, x, merge_outputs=True)[0])

    return hybrid_net(forward, cell=rnn.GRUCell(4, input_size=3), output=nn.Dense(2, in_units=20))


@pytest.mark.parametrize("make", [lambda: rnn.LSTM(4, 2, input_size=3), unrolled])
def test_graphs_of_recurrent_layers_become_graphs_of_numpy(make, tmp_path):
    """T159."""
    net, x = make(), mx.nd.random.normal(shape=(2, 5, 3))
    net.initialize(mx.init.Normal(0.3))
    mxkit.export(net, tmp_path / "net")
    with switches(True):
        outputs = mxkit.load_exported(tmp_path / "net")(x.as_np_ndarray())
    assert isinstance(outputs, mx.np.ndarray)
    np.testing.assert_array_equal(outputs.asnumpy(), net(x).asnumpy())
