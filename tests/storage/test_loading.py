"""Loading: whatever wrote the file, all arrays are compared first, and go where they belong or nowhere."""

import json
import os
import re
import struct

from built_nets import imported, ready, stack
from hypothesis import given, settings
from hypothesis import strategies as st
import mxkit
from mxkit.core.blocks import parameters_by_path
from mxkit.errors import CheckpointError, DeviceError, UnknownNameError
from mxkit.storage.loading import load_parameters, match_arrays
from mxkit.storage.parameter_file import read_arrays
import mxnet as mx
from mxnet import gluon
from mxnet.gluon import nn
from mxnet.gluon.model_zoo import vision
import numpy as np
import pytest
from sharing import examples, long, text_of


def make_mlp(units=4, classes=3, run=True, devices="cpu"):
    net = mxkit.models.mlp(classes, hidden=(units, units))
    if run:
        mxkit.initialize(net, devices=devices)
        net(mx.nd.ones((1, units)).as_in_context(net.collect_params().list_ctx()[0]))
        randomize(net)
    return net


def randomize(net):
    """Give every parameter a value that no other one has, biases and statistics too."""
    for parameter in net.collect_params().values():
        parameter.set_data(mx.nd.random.normal(shape=parameter.shape).astype(parameter.dtype))


def values(net, replica=0):
    found = parameters_by_path(net).items()
    return {path: one.list_data()[replica].asnumpy() for path, one in found if one._data is not None}


def assert_equal(net, other, replica=0):
    """Compare with another net, or with arrays by path."""
    expected, received = other if isinstance(other, dict) else values(other), values(net, replica)
    assert received.keys() == expected.keys()
    for path in expected:
        np.testing.assert_array_equal(received[path], expected[path])


def save(net, path, names=str):
    """Write a file with other names than the paths; `names` maps a path to its name, None leaves it out."""
    named = {names(path): parameter.data() for path, parameter in parameters_by_path(net).items()}
    mx.nd.save(str(path), {name: array for name, array in named.items() if name is not None})
    return path


def refused(net, file, words, error=CheckpointError, **arguments):
    """A file, or arrays, that the net does not take; the net is left as it was."""
    before = values(net)
    with pytest.raises(error, match=words) as caught:
        (match_arrays if isinstance(file, dict) else load_parameters)(net, file, **arguments)
    assert_equal(net, before)
    return str(caught.value)


def sequential(*layers, **arguments):
    net = ready(stack(*layers, **arguments))
    if all(parameter.shape and 0 not in parameter.shape for parameter in net.collect_params().values()):
        randomize(net)
    return net


# whole files


@pytest.mark.parametrize("devices", ["cpu", "cpu:3"])
@pytest.mark.parametrize("state", ["initialized", "deferred", "uninitialized"])
def test_every_replica_gets_the_values(state, devices, tmp_path):
    net = make_mlp()
    net.save_parameters(str(tmp_path / "a.params"))
    other = make_mlp(run=state == "initialized", devices=devices)
    if state == "deferred":
        mxkit.initialize(other, devices=devices)
    other.hybridize()
    result = load_parameters(other, tmp_path / "a.params", devices=devices)
    assert result == (list(values(net)), [], [])
    for replica, device in enumerate(mxkit.devices(devices)):
        assert_equal(other, net, replica)
        x = mx.nd.ones((2, 4))
        np.testing.assert_array_equal(other(x.as_in_context(device)).asnumpy(), net(x).asnumpy())


def test_an_initialized_net_stays_where_it_is_and_goes_on_training(tmp_path):
    net, other = make_mlp(), make_mlp(devices="cpu:2")
    net.save_parameters(str(tmp_path / "a.params"))
    load_parameters(other, tmp_path / "a.params", devices="cpu:3")
    assert other.collect_params().list_ctx() == mxkit.devices("cpu:2")
    trainer = gluon.Trainer(other.collect_params(), "sgd", {"learning_rate": 0.5, "momentum": 0.9})
    data = [(np.ones((4, 4), np.float32), np.zeros(4))]
    for _ in range(2):
        next(mxkit.updates(other, data, loss="softmax_ce", trainer=trainer))
        load_parameters(other, tmp_path / "a.params")
        assert_equal(other, net)
        assert_equal(other, net, replica=1)


def test_dtypes_and_sparse_parameters(tmp_path):
    net, other = make_mlp(), make_mlp()
    net.cast("float16")
    net.save_parameters(str(tmp_path / "a.params"))
    other.cast("float16")
    load_parameters(other, tmp_path / "a.params")
    assert_equal(other, net)
    sparse = ready(nn.Embedding(6, 2, sparse_grad=True))
    rows = mx.nd.array([[0, 0], [1, 2], [0, 0], [0, 0], [3, 4], [0, 0]])
    mx.nd.save(str(tmp_path / "b.params"), {"weight": rows.tostype("row_sparse")})
    load_parameters(sparse, tmp_path / "b.params")
    np.testing.assert_array_equal(sparse.weight.data().asnumpy(), rows.asnumpy())
    # an unknown size would be the file's word alone: 4 TB
    index = mx.nd.sparse.row_sparse_array((mx.nd.ones((1, 2)), [0]), shape=(6, 2))
    arrays = {"weight": index, "bias": mx.nd.ones(6)}
    refused(nn.Dense(6), arrays, "sparse: weight is row_sparse in the file; run the net once")


def test_a_net_without_parameters(tmp_path):
    mx.nd.save(str(tmp_path / "a.params"), {})
    assert load_parameters(nn.Flatten(), tmp_path / "a.params") == ([], [], [])
    refused(nn.Dense(3), tmp_path / "a.params", "missing in the file: weight")


# what does not fit


def test_every_problem_is_told_and_the_net_is_left_as_it_was(tmp_path):
    """T51."""
    net = make_mlp(units=4)
    arrays = {path: parameter.data() for path, parameter in parameters_by_path(net).items()}
    arrays["2.wieght"] = arrays.pop("2.weight")
    arrays["1.bias"] = mx.nd.ones(5)
    arrays["3.bias"] = arrays["3.bias"].astype("float64")
    mx.nd.save(str(tmp_path / "a.params"), arrays)
    before = values(net)
    randomize(net)
    kept = values(net)
    text = refused(net, tmp_path / "a.params", "left as it was")
    assert text.startswith(f"{tmp_path / 'a.params'}: the arrays do not fit the net, which is left as it was:\n")
    assert text.splitlines()[1:] == [
        "  another shape: 1.bias is (5,) in the file, (4,) in the net",
        "  another dtype: 3.bias is float64 in the file, float32 in the net (net.cast('float64') first)",
        "  missing in the file: 2.weight (4, 4) float32 did you mean '2.wieght'?",
        "  not in the net: 2.wieght (4, 4) float32 did you mean '2.weight'?",
    ]
    result = load_parameters(net, tmp_path / "a.params", strict=False)
    loaded = ["1.weight", "2.bias", "3.weight"]
    assert result == (loaded, ["1.bias", "2.weight", "3.bias"], ["1.bias", "3.bias", "2.wieght"])
    assert_equal(net, {path: (before if path in loaded else kept)[path] for path in kept})


def test_long_lists_are_cut(tmp_path):
    net = sequential(*[nn.Dense(2, in_units=2) for _ in range(30)])
    save(net, tmp_path / "a.params", lambda path: f"x.{path}")
    lines = text_of(CheckpointError, load_parameters, net, tmp_path / "a.params").splitlines()
    assert (len(lines), lines[9], lines[-1]) == (18, "  and 53 more", "  and 53 more")


def test_what_cannot_be_loaded_leaves_the_net_as_it_was(tmp_path):
    file = tmp_path / "a.params"
    make_mlp().save_parameters(str(file))
    nothing = "no array fits the net, which is left as it was:\n  another shape"
    refused(make_mlp(units=5, classes=2), file, nothing, strict=False)
    refused(make_mlp(run=False), file, "expected 'auto'", DeviceError, devices="tpu")
    for more in ({"strict": False}, {"only": "0.*"}):
        refused(make_mlp(), file, "the whole file with the whole net", ValueError, match="order", **more)
    refused(make_mlp(), file, "expected 'name' or 'order'; received 'shape'", ValueError, match="shape")


def test_shared_parameters(tmp_path):
    def tied():
        first = nn.Dense(3, in_units=3)
        return sequential(first, nn.Dense(3, in_units=3, params=first.params))

    net = tied()
    for number, arguments in enumerate([{}, {"deduplicate": True}]):
        other, file = tied(), tmp_path / f"{number}.params"
        net.save_parameters(str(file), **arguments)
        assert load_parameters(other, file).missing == []
        assert_equal(other, net)
    net.collect_params().save(str(file))
    load_parameters(tied(), file)
    for part in ("0.*", "1.*"):
        other = tied()
        load_parameters(other, file, only=part)
        assert_equal(other, net)
    flat(2).save_parameters(str(file))
    # MXNet keeps the last of both values without an error
    with pytest.raises(CheckpointError, match="shared: 0.weight and 1.weight are one parameter of the net, but hold"):
        load_parameters(net, file)


# parts


def test_only_a_part(tmp_path):
    net, other = make_mlp(), make_mlp(classes=10)
    net.save_parameters(str(tmp_path / "a.params"))
    before = values(other)
    loaded = ["1.weight", "1.bias", "2.weight"]
    assert load_parameters(other, tmp_path / "a.params", only=["1.*", "2.weight"]) == (loaded, [], [])
    assert_equal(other, {path: (values(net) if path in loaded else before)[path] for path in before})
    with pytest.raises(UnknownNameError, match="no parameter fits 'feature.\\*'"):
        load_parameters(other, tmp_path / "a.params", only="feature.*")
    save(net, tmp_path / "b.params", lambda path: {"1.bias": "1.bais", "3.bias": "4.bias"}.get(path, path))
    text = text_of(CheckpointError, load_parameters, other, tmp_path / "b.params", only="1.*")
    lines = [line.split(" (")[0] for line in text.splitlines()[1:]]
    assert lines == ["  missing in the file: 1.bias", "  not in the net: 1.bais"]


def test_renamed(tmp_path):
    net, other = make_mlp(), make_mlp()
    file = save(net, tmp_path / "a.params", lambda path: f"old.{path}" if path[0] != "3" else f"head.{path[2:]}")
    load_parameters(other, file, rename={"old.*": "*", "head.*": "3.*"})
    assert_equal(other, net)
    load_parameters(other, file, rename={"old.?.*": "?.*", "head.weight": "3.weight", "head.bias": "3.bias"})
    # the last one that fits decides
    arrays = match_arrays(net, read_arrays(file), rename={"head.*": "1.*", "old.*": "*", "head.?*": "3.?*"})
    np.testing.assert_array_equal(arrays["3.bias"].asnumpy(), net[3].bias.data().asnumpy())
    exported = {f"arg:{name}": array for name, array in read_arrays(file).items()}
    for prefix in ("", "arg:"):
        assert len(match_arrays(net, exported, rename={f"{prefix}old.*": "*", f"{prefix}head.*": "3.*"})) == 6


@pytest.mark.parametrize(
    ("rename", "error", "expected"),
    [
        ({"odl.1.weight": "1.weight"}, UnknownNameError, "no name .* fits 'odl.1.weight': did you mean 'old.1.w"),
        ({"xyz": "1.weight"}, UnknownNameError, "no name in the file fits 'xyz': names are .*old.1.weight"),
        ({"old.1.*": "1.*x"}, UnknownNameError, "'old.1.weight' would become '1.weightx', which is no path"),
        ({"old.*": "new"}, ValueError, "'old.\\*' has 1 wildcards, 'new' has 0"),
        ({"old.1.*": "1.*", "old.2.*": "1.*"}, ValueError, "both 'old.1.weight' and 'old.2.weight' of the file"),
    ],
)
def test_rename_errors(rename, error, expected, tmp_path):
    net = make_mlp()
    with pytest.raises(error, match=expected):
        load_parameters(net, save(net, tmp_path / "a.params", "old.{}".format), rename=rename, strict=False)
    with pytest.raises(ValueError, match="both '2.weight' and '1.weight' of the file would become '1.weight'"):
        load_parameters(net, save(net, tmp_path / "b.params"), rename={"2.weight": "1.weight"})


# layouts


def write_layouts(net, folder, size):
    """Each layout that Gluon knows, of one net that has run hybridized, and its SymbolBlock."""
    net.hybridize()
    net(mx.nd.ones(size))
    net.save_parameters(str(folder / "paths"))
    net.collect_params().save(str(folder / "full"))
    net.export(str(folder / "exported"))
    block = imported(folder / "exported")
    block.save_parameters(str(folder / "symbol"))
    try:
        net.collect_params().save(str(folder / "short"), strip_prefix=net.prefix)
    except ValueError:  # blocks made outside of the net's name scope
        net.collect_params().save(str(folder / "short"))
    return block, ["paths", "full", "exported-0000.params", "symbol", "short"]


def zoo(name):
    return lambda: vision.get_model(name, classes=3)


NETS = [("small", lambda: in_sequence(False), 6, 2), long("mobilenetv2", zoo("mobilenetv2_0.25"), 32, 3)]
NETS += [long("resnet", zoo("resnet18_v1"), 32, 3), long("squeezenet", zoo("squeezenet1.1"), 224, 3)]
NETS += [long("densenet", zoo("densenet121"), 224, 3)]


@pytest.mark.parametrize(("name", "make", "size", "channels"), NETS)
def test_every_layout_goes_into_a_net_of_other_counters(name, make, size, channels, tmp_path):
    """T37, T52."""
    net = ready(make(), force=True)
    net(mx.nd.ones((1, channels, size, size)))
    randomize(net)
    block, files = write_layouts(net, tmp_path, (1, channels, size, size))
    for file in files:
        other = make()
        assert list(other.collect_params()) != list(net.collect_params())
        load_parameters(other, tmp_path / file)
        assert_equal(other, net)
    for file in files[1:]:  # Gluon's SymbolBlock does not read its own file
        again = gluon.SymbolBlock.imports(str(tmp_path / "exported-symbol.json"), ["data"])
        load_parameters(again, tmp_path / file)
        assert_equal(again, block)


class Numbers(mx.name.NameManager):
    """Gluon's numbers of blocks begin with `first`, as in a process that has made so many before."""

    def __init__(self, first):
        super().__init__()
        self.first, self.next = first, {}

    def get(self, name, hint):
        number = self.next[hint] = self.next.get(hint, self.first - 1) + 1
        return name or f"{hint}{number}"


def blocks_of(counts, first):
    """Layers outside of any name scope (0), and blocks of so many layers; all parameters have the same shape."""

    def block(count):
        inner = nn.HybridSequential()
        with inner.name_scope():
            inner.add(*[nn.Dense(2, use_bias=False, in_units=2) for _ in range(count)])
        return inner

    with Numbers(first):
        return sequential(*[block(count) if count else nn.Dense(2, use_bias=False, in_units=2) for count in counts])


def flat(count, units=3):
    return sequential(*[nn.Dense(units, in_units=units) for _ in range(count)])


def symbols(counts, first, name="dense"):
    """A SymbolBlock of as many layers, whose numbers begin with `first`."""
    x = data = mx.sym.var("data", dtype="float32")
    for number in range(first, first + sum(map(max, counts, [1] * len(counts)))):
        x = mx.sym.FullyConnected(x, num_hidden=2, no_bias=True, name=f"{name}{number}")
    net = ready(gluon.SymbolBlock(x, data))
    net(mx.nd.ones((1, 2)))
    randomize(net)
    return net


COUNTS, FIRST = st.lists(st.integers(0, 3), min_size=1, max_size=4), st.sampled_from([0, 1, 2, 8, 9, 97, 98, 999])
LAYOUT = st.sampled_from(["paths", "full", "exported", "without the common beginning"])


@settings(max_examples=examples(200))
@given(st.sampled_from([blocks_of, symbols]), COUNTS, COUNTS, st.tuples(FIRST, FIRST), st.booleans(), LAYOUT)
def test_counters_pair_blocks_in_their_order_and_tear_none_apart(make, counts, others, firsts, alike, layout):
    """T60a: dense9 stands before dense10."""
    net, other = make(counts, firsts[0]), make(counts if alike else others, firsts[1])
    names = list(parameters_by_path(net)) if layout == "paths" else list(net.collect_params())
    cut = len(os.path.commonprefix(names)) if layout.startswith("without") else 0
    named = [f"arg:{name}" if layout == "exported" else name[cut:] for name in names]
    arrays = dict(zip(named, (parameter.data() for parameter in net.collect_params().values())))
    ordered = dict(reversed(list(arrays.items()))) if layout == "paths" and make is blocks_of else arrays
    try:
        matched = match_arrays(other, ordered)
    except CheckpointError:
        assert not alike
        assert counts != others
        return
    assert len(matched) == len(arrays)
    if alike:
        assert [id(array) for array in matched.values()] == [id(array) for array in arrays.values()]
    elif make is blocks_of:
        blocks = {id(array): re.split("[_.]", name)[0] for name, array in zip(names, arrays.values())}
        pairs = {(blocks[id(array)], path.split(".")[0]) for path, array in matched.items()}
        assert len(pairs) == len(dict(pairs)) == len({path for _, path in pairs})


def test_a_name_of_the_file_alone_makes_counters_uncertain():
    names = [name for name in flat(4).collect_params() if name.endswith("weight")]
    numbers = [int(name[len("dense") : -len("_weight")]) for name in names]
    net = flat(4)
    shift = int(net[0].name[len("dense") :]) - numbers[0] - 1  # three of four names are the net's, one layer off
    arrays = {f"dense{number + shift}_weight": mx.nd.ones((3, 3)) for number in [numbers[0] - 1, *numbers]}
    for strict in (True, False):
        refused(net, arrays, "not certain which array .* is in the file alone, .* net alone", strict=strict)


class Branch1(nn.HybridBlock):
    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.layer = nn.Dense(2, in_units=2)


class Branch2(Branch1):
    """Its name differs in the last digit, which may be of a counter."""


class Rows(nn.HybridBlock):
    """Attributes that look like full names, in a net without a prefix."""

    def __init__(self, *numbers):
        super().__init__(prefix="")
        for number in numbers:
            setattr(self, f"row{number}_w", self.params.get(f"row{number}_w", shape=(3,), init="ones"))


def arrays_of(net, order=1):
    """Arrays by full name, from the first or from the last."""
    return {name: parameter.data() for name, parameter in list(net.collect_params().items())[::order]}


def classes_in_a_digit(first):
    with Numbers(7) as numbers:
        numbers.next["branch1"] = first - 1
        return sequential(Branch1(), Branch2(), prefix="")


def test_what_counters_do_not_decide_is_refused():
    one = sequential(nn.Dense(3, use_bias=False, in_units=3))
    refused(one, {"dense7_gain": mx.nd.ones((3, 3))}, "missing in the file: 0.weight .*\n  not in the net: dense7_gain")
    refused(symbols([1, 1], 1), arrays_of(symbols([1, 1], 1, name="conv")), "missing in the file: 1_weight")
    text = "would be '.*' of the net by the order of the numbers, but '.*' by the order of the file"
    refused(flat(3), arrays_of(flat(3), order=-1), text)
    refused(flat(2, units=5), arrays_of(flat(2)), r"its numbers 'dense.*_weight' \(3, 3\) .* be '0.weight' \(5, 5\)")
    # 1100 of branch1100 is above 27 of branch27, and 11 of branch11 below it
    refused(classes_in_a_digit(1), arrays_of(classes_in_a_digit(100)), text)
    net, other = Rows(1, 2), Rows(2, 3)
    for each in (net, other):
        mxkit.initialize(each)
        randomize(each)
    refused(other, arrays_of(net), "missing in the file: row3_w .*\n  not in the net: row1_w")
    assert list(match_arrays(other, arrays_of(net), strict=False)) == ["row2_w"]


def test_rename_makes_contradicting_counters_certain(tmp_path):
    net, other = flat(3), flat(3)
    mx.nd.save(str(tmp_path / "a.params"), arrays_of(net, order=-1))
    load_parameters(other, tmp_path / "a.params", rename={f"{one.name}_*": f"{i}.*" for i, one in enumerate(net)})
    assert_equal(other, net)
    first, _, third = (layer.name for layer in net)
    # said of one layer it is certain for the others no more: two of them stay
    refused(other, tmp_path / "a.params", "it is not certain", rename={f"{first}_*": "0.*"})
    load_parameters(other, tmp_path / "a.params", rename={f"{first}_*": "0.*", f"{third}_*": "2.*"})


def test_full_names_beside_others_and_of_another_head(tmp_path):
    def scoped(classes):
        net = nn.HybridSequential()
        with net.name_scope():
            net.add(nn.Dense(3, in_units=3), nn.Dense(classes, in_units=3))
        mxkit.initialize(net)
        randomize(net)
        return net

    net, other = scoped(10), scoped(3)
    file = str(tmp_path / "a.params")
    mx.nd.save(file, {**arrays_of(net), "teacher_x": mx.nd.ones(3)})
    before = values(net)
    randomize(net)
    refused(net, file, "not in the net: teacher_x")
    assert load_parameters(net, file, strict=False) == (list(before), [], ["teacher_x"])
    assert_equal(net, before)
    net.collect_params().save(file)
    result = load_parameters(other, file, strict=False)
    assert result.missing == ["1.weight", "1.bias"]
    assert [name.split("_", 1)[1] for name in result.unexpected] == ["dense1_weight", "dense1_bias"]
    assert load_parameters(scoped(3), file, only="0.*").loaded == result.loaded


class Odd(nn.HybridBlock):
    """Owns a parameter whose attribute and name differ, and no other."""

    def __init__(self):
        super().__init__()
        self.scale = self.params.get("gamma", shape=(3,), init="ones")

    def hybrid_forward(self, F, x, scale):
        return x * scale


def test_a_parameter_of_the_net_itself_under_another_attribute(tmp_path):
    """T45."""
    net, other = Odd(), Odd()
    mxkit.initialize(net)
    randomize(net)
    net.save_parameters(str(tmp_path / "a.params"))
    with pytest.raises(AssertionError):
        other.load_parameters(str(tmp_path / "a.params"))
    load_parameters(other, tmp_path / "a.params")
    assert_equal(other, net)


# pairs by order


class Styled(gluon.HybridBlock):
    """The layers of `in_sequence` under other names."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2D(4, 3, prefix="front_"), nn.BatchNorm(prefix="scale_")
        self.dense = nn.Dense(3, prefix="head_")

    def hybrid_forward(self, F, x):
        return self.dense(F.relu(self.norm(self.conv(x))))


def in_sequence(run=True):
    net = sequential(nn.Conv2D(4, 3), nn.BatchNorm(), nn.Activation("relu"), nn.Dense(3))
    if run:
        net(mx.nd.ones((1, 2, 6, 6)))
        randomize(net)
    return net


def styled():
    net = ready(Styled())
    net(mx.nd.ones((1, 2, 6, 6)))
    randomize(net)
    net.norm.running_var.set_data(net.norm.running_var.data().abs())
    return net


@pytest.mark.parametrize("layout", ["paths", "full", "exported-0000.params", "symbol"])
@pytest.mark.parametrize("run", [True, False])
def test_the_same_layers_under_other_names_are_paired_by_order(layout, run, tmp_path, capsys):
    net, other = styled(), in_sequence(run)
    write_layouts(net, tmp_path, (1, 2, 6, 6))
    with pytest.raises(CheckpointError, match=r"same order\? .* mxkit\.load_parameters\(net, file, match='order'\)"):
        load_parameters(other, tmp_path / layout)
    result = load_parameters(other, tmp_path / layout, match="order")
    assert result == (list(parameters_by_path(other)), [], [])
    x = mx.nd.random.uniform(shape=(2, 2, 6, 6))
    np.testing.assert_array_equal(other(x).asnumpy(), net(x).asnumpy())
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 8
    assert printed[0].startswith("by order: 0.weight (4, 2, 3, 3) from '")


def test_a_file_of_module_goes_into_a_gluon_net_by_order(tmp_path, capsys):
    net = mx.sym.Convolution(mx.sym.var("data"), kernel=(3, 3), num_filter=4, name="c1")
    net = mx.sym.Activation(mx.sym.BatchNorm(net, name="b1", fix_gamma=False, eps=1e-5), act_type="relu")
    net = mx.sym.BatchNorm(mx.sym.Convolution(net, kernel=(3, 3), num_filter=4, name="c2"), name="b2", fix_gamma=False)
    net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(net, num_hidden=3, name="fc"), name="softmax")
    module = mx.mod.Module(net)
    module.bind([("data", (2, 2, 8, 8))], [("softmax_label", (2,))])
    module.init_params(mx.init.Normal(0.3))
    module.set_params(
        *[{name: mx.nd.random.uniform(0.1, 1, one.shape) for name, one in part.items()} for part in module.get_params()]
    )
    module.save_checkpoint(str(tmp_path / "net"), 5)
    ours = stack(
        nn.Conv2D(4, 3), nn.BatchNorm(), nn.Activation("relu"), nn.Conv2D(4, 3), nn.BatchNorm(epsilon=1e-3), nn.Dense(3)
    )
    load_parameters(ours, tmp_path / "net-0005.params", match="order")
    x = mx.nd.random.uniform(shape=(2, 2, 8, 8))
    module.forward(mx.io.DataBatch([x], [mx.nd.zeros(2)]), is_train=False)
    np.testing.assert_allclose(ours(x).softmax().asnumpy(), module.get_outputs()[0].asnumpy(), atol=1e-6)
    assert "by order: 4.running_var (4,) from 'aux:b2_moving_var'" in capsys.readouterr().out


def three():
    return flat(3, units=2)


def norms():
    return sequential(nn.BatchNorm(in_channels=2), nn.BatchNorm(in_channels=2))


MATRIX, VECTOR = (2, 2), (2,)
UNORDERED = {
    "counts": (three, {"a": MATRIX, "b": VECTOR}, "the file has 2 arrays, the net 6 parameters"),
    "more": (three, dict.fromkeys("abcdefg", MATRIX), r"the file has 7 arrays, .*'b' \(2, 2\) .*'0.bias' \(2,\)"),
    "shapes": (
        three,
        {"a": MATRIX, "b": VECTOR, "c": MATRIX, "d": (3,), "e": MATRIX, "f": VECTOR},
        r"by order 'd' \(3,\) of the file would be '1.bias' \(2,\) of the net",
    ),
    "sorted names": (
        three,
        {"fc1_w": MATRIX, "fc1_b": VECTOR, "fc10_w": MATRIX, "fc10_b": VECTOR, "fc2_w": MATRIX, "fc2_b": VECTOR},
        r"'fc10_w' stands before 'fc2_w' in the file, and both have the shape \(2, 2\)",
    ),
    "all biases first": (
        three,
        {"a": VECTOR, "b": VECTOR, "c": VECTOR, "d": MATRIX, "e": MATRIX, "f": MATRIX},
        r"by order 'a' \(2,\) of the file would be '0.weight' \(2, 2\)",
    ),
    "beta for gamma": (
        norms,
        dict.fromkeys(
            [f"bn{i}_{one}" for i in (1, 2) for one in ("beta", "gamma", "moving_mean", "moving_var")], VECTOR
        ),
        r"by order 'bn1_beta' \(2,\) of the file would be '0.gamma' of the net",
    ),
    "statistics without a name": (norms, dict.fromkeys("abcdefgh", VECTOR), "whether means and variances are beside"),
    "the net's own names": (
        three,
        {f"{i}.{one}": MATRIX if one == "weight" else VECTOR for i in (2, 1, 0) for one in ("weight", "bias")},
        "the net's own names in another order: leave match='order' out",
    ),
}


@pytest.mark.parametrize("name", UNORDERED)
def test_what_is_not_certain_by_order_is_refused_and_the_net_is_left_as_it_was(name, tmp_path, capsys):
    make, shapes, text = UNORDERED[name]
    mx.nd.save(str(tmp_path / "a.params"), {one: mx.nd.random.uniform(shape=shape) for one, shape in shapes.items()})
    told = refused(make(), tmp_path / "a.params", text, match="order")
    assert "a.params" in told
    assert "rename={" in told
    assert capsys.readouterr().out == ""


def test_rename_takes_pairs_out_of_the_order(tmp_path):
    net = three()
    names = ["fc1_w", "fc1_b", "fc10_w", "fc10_b", "fc2_w", "fc2_b"]
    arrays = {name: mx.nd.random.uniform(shape=MATRIX if name.endswith("w") else VECTOR) for name in names}
    mx.nd.save(str(tmp_path / "a.params"), arrays)
    load_parameters(net, tmp_path / "a.params", match="order", rename={"fc10_w": "2.weight", "fc10_b": "2.bias"})
    for path, name in [("0.weight", "fc1_w"), ("1.weight", "fc2_w"), ("2.weight", "fc10_w"), ("1.bias", "fc2_b")]:
        np.testing.assert_array_equal(values(net)[path], arrays[name].asnumpy())


def test_a_shared_parameter_is_paired_once_or_under_each_path(tmp_path):
    first = nn.Dense(2, in_units=2)
    net = sequential(first, nn.Dense(2, in_units=2), nn.Dense(2, in_units=2, params=first.params))
    one, two = mx.nd.ones(MATRIX), mx.nd.ones(VECTOR)
    for count in (4, 6):
        arrays = {f"{'wb'[i % 2]}{i}": (two if i % 2 else one) * (1 + i % 4) for i in range(count)}
        mx.nd.save(str(tmp_path / "a.params"), arrays)
        load_parameters(net, tmp_path / "a.params", match="order")
        assert values(net)["1.weight"].tolist() == [[3, 3], [3, 3]]
        assert values(net)["2.weight"].tolist() == [[1, 1], [1, 1]]
    arrays["w4"] = one * 7
    mx.nd.save(str(tmp_path / "a.params"), arrays)
    refused(net, tmp_path / "a.params", "shared: w0 and w4 are one parameter", match="order")


def safetensors_bytes(**arrays):
    """What a file of safetensors holds, for dtypes that NumPy lacks, too: dtype, shape and bytes of each array."""
    header, data = {}, b""
    for name, (dtype, shape, content) in arrays.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def test_bfloat16_of_safetensors_is_float32_and_other_dtypes_are_named(tmp_path):
    pytest.importorskip("safetensors")
    numbers = np.array([[1, -2.5, 3e38], [0, -1e-30, 7]], "float32")
    upper = (numbers.view("uint32") >> 16).astype("uint16")
    bias = numbers[0, :2].tobytes()
    path = tmp_path / "a.safetensors"
    path.write_bytes(safetensors_bytes(bias=("F32", [2], bias), weight=("BF16", [2, 3], upper.tobytes())))
    net = ready(nn.Dense(2, in_units=3))
    load_parameters(net, path)
    assert net.weight.data().asnumpy().tobytes() == (upper.astype("uint32") << 16).tobytes()
    assert net.bias.data().asnumpy().tolist() == [1, -2.5]
    path.write_bytes(safetensors_bytes(weight=("U16", [2, 3], upper.tobytes())))
    with pytest.raises(CheckpointError, match="has a dtype that MXNet lacks: .*uint16"):
        load_parameters(net, path)
