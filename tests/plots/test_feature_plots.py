"""Pictures of features, kernels, distributions and gradients: their content compared with NumPy."""

import itertools
import sys

from built_nets import hybrid_net, ready, stack
import mxkit
from mxkit.errors import UnknownNameError
from mxkit.plots.feature_plots import plot_activations, plot_features, plot_filters
from mxkit.plots.gradient_pictures import plot_gradients
import mxnet as mx
from mxnet import autograd, gluon
from mxnet.gluon import nn
import numpy as np
import pytest
from sharing import long
from sklearn.datasets import load_digits

DIGITS = (load_digits().images[:40, None] / 16).astype("float32")


def lenet():
    return ready(nn.Conv2D(12, 3, activation="relu"), nn.Conv2D(16, 3), nn.Flatten(), nn.Dense(9, activation="relu"))


def outputs(net, x):
    """What each child of a Sequential gives, by its path."""
    features = {}
    for path, block in net._children.items():
        x = features[path] = block(x)
    return features


def normal(*shape):
    return mx.nd.random.normal(shape=shape)


def title(figure):
    return figure._suptitle.get_text()


def grid(figure, image=False):
    """The axes of the channels, and the arrays of the pictures in it."""
    axes = figure.axes[1 if image else 0]
    return axes, [np.ma.getdata(picture.get_array()) for picture in axes.images]


def labels(axes):
    return [int(text.get_text()) for text in axes.texts]


def test_a_grid_shows_the_channels_on_one_scale_centred_at_zero():
    features = outputs(lenet(), mx.nd.array(DIGITS))
    figures = plot_features(features, sample=3)
    assert list(figures) == ["0", "1", "2", "3"]
    axes, pictures = grid(figures["1"])
    expected = features["1"].asnumpy()[3]
    np.testing.assert_array_equal(pictures, expected)
    assert labels(axes) == list(range(16))
    limits = {picture.get_clim() for picture in axes.images}
    assert limits == {(-np.abs(expected).max(), np.abs(expected).max())}
    assert {picture.get_cmap().name for picture in axes.images} == {"RdBu_r"}
    assert figures["1"].axes[-1].get_ylim() == limits.pop()
    assert title(figures["1"]) == "1  (40, 16, 4, 4)\nall 16 channels · sample 3 of 40"


def test_values_of_one_sign_have_a_sequential_scale_of_their_own_range():
    for low in (2, -3):
        values = mx.nd.random.uniform(low, low + 1, shape=(1, 4, 5, 5))
        axes, _ = grid(plot_features({"a": values})["a"])
        assert axes.images[0].get_cmap().name == "viridis"
        assert axes.images[0].get_clim() == (values.min().asscalar(), values.max().asscalar())


def test_the_strongest_channels_come_first_and_are_counted():
    feature = normal(2, 100, 4, 4) * normal(1, 100, 1, 1)
    axes, pictures = grid(plot_features({"a": feature}, sample=1, channels=7, order="strength")["a"])
    values = feature.asnumpy()[1]
    strongest = np.argsort(-np.abs(values.astype("float64")).mean(axis=(1, 2)))[:7]
    assert labels(axes) == strongest.tolist()
    np.testing.assert_array_equal(pictures, values[strongest])
    assert "7 of 100 channels, strongest first · sample 1 of 2" in title(axes.figure)
    for channels in ([5, 2, 7], np.array([5, 2, 7])):  # a list is drawn in its order
        assert labels(grid(plot_features({"a": feature}, channels=channels)["a"])[0]) == [5, 2, 7]


def test_channels_of_nothing_but_zeros_are_marked():
    feature = mx.nd.relu(normal(2, 30, 2, 2) - 0.5)
    axes, _ = grid(plot_features({"a": feature}, channels=range(29, -1, -1))["a"])
    empty = ~feature.asnumpy()[0].any(axis=(1, 2))[::-1]
    assert 0 < empty.sum() < 30
    assert len(axes.patches) == empty.sum()
    assert [text.get_color() != "black" for text in axes.texts] == empty.tolist()
    assert [picture.get_alpha() is not None for picture in axes.images] == empty.tolist()
    assert f"{empty.sum()} all 0 (grey)" in title(axes.figure)


def test_units_of_a_dense_layer_are_bars():
    feature = outputs(lenet(), mx.nd.array(DIGITS))["3"]
    (axes,) = plot_features({"3": feature}, sample=2)["3"].axes
    values = feature.asnumpy()[2]
    np.testing.assert_allclose([bar.get_height() for bar in axes.patches], values, rtol=1e-12)
    assert [text.get_text() for text in axes.get_xticklabels()] == [str(unit) for unit in range(9)]
    np.testing.assert_array_equal(axes.lines[0].get_xdata(), np.flatnonzero(values == 0))
    assert "all 9 units" in title(axes.figure)


def test_a_sequence_is_a_map_of_steps_and_a_volume_its_middle_slice():
    sequence, volume = normal(2, 11, 30), normal(1, 3, 7, 5, 6)
    volume[0, 1, 3] = 0  # its slice is 0, the channel is not
    axes, (values,) = grid(plot_features({"a": sequence}, channels=[4, 29, 0])["a"])
    np.testing.assert_array_equal(values, sequence.asnumpy()[0][:, [4, 29, 0]])
    assert axes.get_xlabel() == "channel (axis 2)"
    assert [text.get_text() for text in axes.get_xticklabels()] == ["4", "29", "0"]
    axes, pictures = grid(plot_features({"a": volume})["a"])
    np.testing.assert_array_equal(pictures, volume.asnumpy()[0, :, 3])
    assert "middle slice 3 of 7" in title(axes.figure)
    assert not axes.patches


@pytest.mark.parametrize("shape", [(2, 3, 6, 5), (3, 6, 5), (6, 5, 3), (2, 1, 6, 5), (6, 5, 1)])
def test_the_input_is_drawn_first_stretched_to_its_range(shape):
    values = np.random.RandomState(1).randn(*shape).astype("float32")
    figure = plot_features({"a": normal(2, 4, 3, 3)}, sample=1, image=mx.nd.array(values))["a"]
    first = figure.axes[0]
    assert first.get_title() == "input"
    one = values[1] if len(shape) == 4 else values
    one = np.moveaxis(one, 0, -1) if shape[-1] == 5 else one
    expected = (one.astype("float64") - one.min()) / (one.max().astype("float64") - one.min())
    np.testing.assert_allclose(first.images[0].get_array(), expected.squeeze(), atol=1e-12)
    assert len(grid(figure, image=True)[1]) == 4


def test_values_that_are_not_finite_are_told_and_leave_the_scale_alone():
    feature = normal(1, 4, 3, 3)
    feature[0, 1, 1, 1], feature[0, 2, 0, 0] = float("nan"), float("inf")
    values = feature.asnumpy()
    axes, _ = grid(plot_features({"a": feature})["a"])
    bound = np.abs(values[np.isfinite(values)]).max()
    assert axes.images[0].get_clim() == (-bound, bound)
    assert "2 not finite (green)" in title(axes.figure)
    for shape in [(1, 4, 3, 3), (1, 5), (1, 5, 6)]:
        figure = plot_features({"a": mx.nd.full(shape, float("nan"))}, order="strength")["a"]
        assert "not finite" in title(figure)
        figure.canvas.draw()


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (1, 4), (1, 2, 3), long((1, 2, 3, 3)), long((1, 2, 1, 50))])
def test_one_and_the_same_number_everywhere_can_be_drawn(shape):
    plot_features({"a": mx.nd.full(shape, -2.5)})["a"].canvas.draw()
    plot_activations({"a": mx.nd.zeros(shape)}).canvas.draw()


def test_lists_are_drawn_one_by_one_and_a_notebook_shows_all():
    figures = plot_features({"state": [normal(2, 4), normal(2, 3, 5)], "out": (normal(2, 3),)})
    assert list(figures) == ["state[0]", "state[1]", "out[0]"]
    assert figures._repr_html_().count('<img src="data:image/png;base64,iVBOR') == 3


def test_each_layer_has_a_file_of_its_own_in_a_folder(tmp_path):
    features = {name: normal(1, 2) for name in ["a/b", "a_b", "A.b", "", "x" * 300, "x" * 301]}
    figures = plot_features(features, path=tmp_path / "deep" / "pictures")
    files = {file.name.lower() for file in (tmp_path / "deep" / "pictures").iterdir()}
    assert list(figures) == list(features)
    stems = ["a_b", "a_b", "a.b", "net", "x" * 120, "x" * 120]
    assert files == {f"{number}-{stem}.png" for number, stem in enumerate(stems)}
    plot_features({"a/b": normal(1, 2), "": normal(1, 2)}, path=tmp_path / "few")
    assert sorted(file.name for file in (tmp_path / "few").iterdir()) == ["a_b.png", "net.png"]
    plot_features({"a": normal(1, 2)}, path=str(tmp_path / "sub/run.pdf"))  # one layer goes into the file
    assert (tmp_path / "sub/run.pdf").read_bytes().startswith(b"%PDF")


def test_one_copy_a_layer_and_only_of_the_sample(monkeypatch):
    copied, copy = [], mx.nd.NDArray.asnumpy
    monkeypatch.setattr(mx.nd.NDArray, "asnumpy", lambda array: copied.append(array.shape) or copy(array))
    plot_features({"a": normal(50, 6, 3, 3), "b": normal(50, 7)}, order="strength")
    assert copied == [(6, 3, 3), (7,)]
    net = backward(dense_net([mx.cpu(0), mx.cpu(1)]))
    copied.clear()
    plot_gradients(net)
    assert copied == [(8,), (4,)]


FEATURE = {"a": mx.nd.ones((2, 3, 4, 4))}


@pytest.mark.parametrize(
    ("features", "options", "error", "text"),
    [
        (FEATURE["a"], {}, ValueError, "expected a dict of arrays .* received NDArray"),
        ({}, {}, ValueError, "received an empty one"),
        ({"a": [FEATURE["a"], None]}, {}, ValueError, "'a': expected an NDArray or a list .* NoneType"),
        ({"a": mx.nd.ones(3)}, {}, ValueError, r"'a': expected \(N, C\)"),
        ({**FEATURE, "b": mx.nd.ones((1,) * 6)}, {}, ValueError, r"'b': .* received the shape \(1, 1, 1, 1, 1, 1\)"),
        (FEATURE, {"sample": 2}, IndexError, "2 is out of bounds"),
        (FEATURE, {"channels": [0, 3]}, IndexError, "3 is out of bounds"),
        (FEATURE, {"channels": 0}, ValueError, "channels: expected a whole number, at least 1"),
        (FEATURE, {"order": "best"}, ValueError, "order: expected 'index' or 'strength'; received 'best'"),
        (FEATURE, {"image": mx.nd.ones((2, 5, 4, 4))}, ValueError, r"received shape \(5, 4, 4\)"),
        ({**FEATURE, "b": FEATURE["a"]}, {"path": "x.png"}, ValueError, "path: expected a folder for 2 layers"),
    ],
)
def test_what_cannot_be_drawn_is_said_before_anything_is_written(features, options, error, text, tmp_path):
    options = {"path": "pictures", **options}
    options["path"] = tmp_path / options["path"]
    with pytest.raises(error, match=text):
        plot_features(features, **options)
    assert not list(tmp_path.iterdir())


def test_kernels_over_three_colours_are_pictures_on_one_scale():
    net = ready(mxkit.models.lenet(), sample=(1, 3, 28, 28))
    weight = net[0].weight.data().asnumpy().astype("float64")
    figure = plot_filters(net, "0")
    axes, pictures = grid(figure)
    assert len(figure.axes) == 1  # colours need no bar
    np.testing.assert_allclose(pictures, weight.transpose(0, 2, 3, 1) / np.abs(weight).max() / 2 + 0.5)
    assert title(figure).startswith("0  (20, 3, 5, 5)\nall 20 kernels · red, green, blue from -")
    assert title(figure).endswith("one scale for all, 0 is grey")
    axes, _ = grid(plot_filters(net, "0.weight", channels=[9, 4]))
    assert labels(axes) == [9, 4]
    assert "2 of 20 kernels · red" in title(axes.figure)


def test_other_kernels_are_their_mean_over_the_inputs(tmp_path):
    net = lenet()
    net(mx.nd.array(DIGITS))
    figure = plot_filters(net, "1.weight", path=tmp_path / "kernels.png")
    weight = net[1].weight.data().asnumpy().astype("float64")
    np.testing.assert_allclose(grid(figure)[1], weight.mean(axis=1), rtol=1e-12)
    assert "mean over 12 inputs" in title(figure)
    assert (tmp_path / "kernels.png").read_bytes().startswith(b"\x89PNG")
    np.testing.assert_array_equal(grid(plot_filters(net, "0"))[1], net[0].weight.data().asnumpy()[:, 0])


@pytest.mark.parametrize(("inputs", "groups"), [(4, 1), (4, 2), (6, 3)])
def test_a_transposed_convolution_shows_what_an_impulse_gives(inputs, groups):
    net = ready(nn.Conv2DTranspose(6, 3, in_channels=inputs, groups=groups, use_bias=False))
    impulses = mx.nd.array(np.eye(inputs)[:, :, None, None])
    answers = net(impulses).asnumpy().astype("float64")  # (inputs, outputs, 3, 3): 0 outside of an input's group
    expected = answers.sum(axis=0) / (inputs // groups)
    np.testing.assert_allclose(grid(plot_filters(net, ""))[1], expected, atol=1e-7)


def test_channels_last_broken_kernels_and_other_dimensions():
    last = ready(nn.Conv2D(4, 2, in_channels=3, layout="NHWC"))
    line, volume = ready(nn.Conv1D(4, 5, in_channels=2)), ready(nn.Conv3D(4, 3, in_channels=2))
    bound = np.abs(last.weight.data().asnumpy()).max().astype("float64")
    expected = last.weight.data().asnumpy() / bound / 2 + 0.5
    np.testing.assert_allclose(grid(plot_filters(last, ""))[1], expected, rtol=1e-6)
    last.weight.data()[0, 1, 0, 0] = float("nan")
    last.weight.data()[1] = 0
    figure = plot_filters(last, "")
    assert grid(figure)[1][0][1, 0].tolist() == [0, 1, 0]
    assert title(figure).endswith(" · 1 all 0 (grey) ·\n1 not finite (green)")
    np.testing.assert_array_equal(grid(plot_filters(line, "weight"))[1], line.weight.data().asnumpy())
    figure = plot_filters(volume, "")
    np.testing.assert_allclose(grid(figure)[1], volume.weight.data().asnumpy()[:, :, 1].mean(axis=1), rtol=1e-6)
    assert "middle slice 1 of 3" in title(figure)


def test_kernels_that_are_not_there():
    net = ready(lenet(), force=True, sample=mx.nd.array(DIGITS))
    for layer in ("O", "1.wieght", "3", "1.bias"):
        with pytest.raises(UnknownNameError, match=f"unknown convolution '{layer}': .*Known: 0, 1"):
            plot_filters(net, layer)
    with pytest.raises(IndexError, match="16"):
        plot_filters(net, "1", channels=[16])


# plot_activations


def lines(axes):
    return axes.get_title(loc="left").split("\n")


def test_histograms_hold_every_value_and_dead_units_are_counted(tmp_path):
    net = lenet()
    net(mx.nd.array(DIGITS))
    net[0].bias.data()[:5] = -100
    features = outputs(net, mx.nd.array(DIGITS))
    figure = plot_activations(features, bins=30, path=tmp_path / "a.png")
    assert len(figure.axes) == 4
    for (path, feature), axes in zip(features.items(), figure.axes):
        values = feature.asnumpy()
        counts, edges, _ = axes.patches[0].get_data()
        np.testing.assert_array_equal(counts, np.histogram(values.astype("float64"), bins=30)[0])
        np.testing.assert_allclose(edges, np.histogram(values.astype("float64"), bins=30)[1], rtol=1e-6, atol=1e-9)
        units = np.moveaxis(values, 1, 0).reshape(values.shape[1], -1)
        dead = int((units.max(axis=1) == units.min(axis=1)).sum())
        exact = values.astype("float64")
        assert lines(axes) == [
            path,
            str(values.shape),
            f"mean {exact.mean():.3g}, std {exact.std():.3g}, zeros {(values == 0).mean():.1%}",
            f"{dead} of {len(units)} units dead",
        ]
    assert lines(figure.axes[0])[-1] == "5 of 12 units dead"
    assert {axes.get_yscale() for axes in figure.axes} == {"log"}
    assert (tmp_path / "a.png").exists()


def test_what_counts_as_dead():
    linear = plot_activations({"a": mx.nd.arange(600).reshape((6, 100))})  # no panel needs logarithms
    assert (linear.axes[0].get_yscale(), linear._supylabel.get_text()) == ("linear", "values in a bin")
    batch = np.random.RandomState(0).randn(6, 8, 5).astype("float32")
    batch[:, :, 1], batch[:, :, 2], batch[:5, :, 3] = 0, 3.5, 0
    batch[:, :, 4] = float("nan")
    assert lines(plot_activations({"a": mx.nd.array(batch)}).axes[0])[-1] == "2 of 5 units dead, 48 not finite"
    # of a single value only 0 says something
    assert lines(plot_activations({"a": mx.nd.array([[0, 1, 2]])}).axes[0])[-1] == "1 of 3 units dead"
    assert lines(plot_activations({"a": mx.nd.array([1, 2, 3])}).axes[0])[-1] == "0 of 1 units dead"


def test_values_that_are_not_finite_are_left_out_and_counted():
    values = mx.nd.array([[1, 2, float("inf")], [float("nan"), 4, -float("inf")]])
    figure = plot_activations({"some": values, "all": values * float("nan"), "log": mx.nd.relu(normal(9, 900))})
    some, nothing, logarithmic = figure.axes
    assert logarithmic.get_yscale() == "log"
    assert not len(nothing.get_yticks())
    assert lines(some)[2:] == ["mean 2.33, std 1.25, zeros 0.0%", "0 of 3 units dead, 3 not finite"]
    assert some.patches[0].get_data()[0].sum() == 3
    assert lines(nothing)[2:] == ["no finite value", "0 of 3 units dead, 6 not finite"]
    figure.canvas.draw()


@pytest.mark.parametrize("values", [[1e30, 1e30], [1, 1 + 2.3e-16], [-7, -7], [0, 0], [1e-300, 2e-300]])
def test_a_range_that_cannot_be_cut_into_bins_is_widened(values):
    feature = mx.nd.array([values], dtype="float64")
    counts, edges, _ = plot_activations({"a": feature}).axes[0].patches[0].get_data()
    assert counts.sum() == 2
    assert (np.diff(edges) > 0).all()


def dense_net(devices="cpu", dtype="float32"):
    net = stack(nn.Dense(5, in_units=4, activation="tanh"), nn.Dense(3, in_units=5))
    net.cast(dtype)
    return ready(net, devices=devices)


def backward(net, samples=6):
    parameter = next(iter(net.collect_params().values()))
    dtype = parameter.dtype
    with autograd.record():
        losses = [
            (net((normal(samples, 4) * (i + 1)).astype(dtype).as_in_context(device)) ** 2).sum()
            for i, device in enumerate(parameter.list_ctx())
        ]
    autograd.backward(losses)
    return net


def norm(array):
    return np.linalg.norm(array.asnumpy().astype("float64"))


def rows(axes):
    """Height of each bar by its row."""
    return {round(bar.get_y() + 0.35): bar.get_width() for bar in axes.patches}


def marks(figure):
    return [text.get_text() for text in figure.axes[1].texts]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_bars_are_the_norms_in_the_order_of_the_net(dtype, tmp_path):
    """T100: also of gradients that are large for their dtype."""
    net = dense_net(dtype=dtype)
    for parameter in net.collect_params().values():  # of float16, with which MXNet cannot compute on a CPU, too
        parameter.data()[:] += 0.5
        parameter.grad()[:] = 60000
    if dtype != "float16":  # a gradient stays to be seen after the update
        gluon.Trainer(backward(net).collect_params(), "sgd", {"learning_rate": 0.1}).step(6)
    figure = plot_gradients(net, path=tmp_path / "gradients.png" if dtype == "float32" else None)
    parameters = net._collect_params_with_prefix()
    left, right = figure.axes
    assert [text.get_text() for text in left.get_yticklabels()] == list(parameters)
    gradients = [norm(parameter.grad()) for parameter in parameters.values()]
    weights = [norm(parameter.data()) for parameter in parameters.values()]
    assert list(rows(left)) == [0, 1, 2, 3]
    np.testing.assert_allclose(list(rows(left).values()), gradients, rtol=1e-6)
    np.testing.assert_allclose(left.lines[-1].get_xdata(), weights, rtol=1e-6)
    np.testing.assert_allclose(list(rows(right).values()), np.divide(gradients, weights), rtol=1e-6)
    assert left.get_xscale() == right.get_xscale() == "log"
    assert left.get_ylim()[0] > left.get_ylim()[1]  # the first layer is on top
    assert title(figure) == "HybridSequential: gradients of 4 parameters"
    assert (tmp_path / "gradients.png").exists() == (dtype == "float32")


def test_rows_without_a_whole_bar_say_why():
    net = ready(*[nn.Dense(3, in_units=3) for _ in range(3)], nn.BatchNorm(in_channels=3))
    net[0].weight.grad_req = "null"
    with autograd.record():
        loss = net(normal(5, 3)).sum()
    loss.backward()
    net[1].weight.grad()[:] = 0
    net[1].bias.grad()[0] = float("nan")
    for path in [net[0].bias, net[2].bias, net[2].weight, net[3].gamma, net[3].beta]:
        path.grad()[:] = 1
    figure = plot_gradients(net)
    expected = ["frozen", "weight 0", "gradient 0", "not finite", "", "weight 0", "", "weight 0"]
    assert marks(figure) == expected  # and no row for running_mean and running_var
    assert sorted(rows(figure.axes[0])) == [1, 4, 5, 6, 7]
    assert sorted(rows(figure.axes[1])) == [4, 6]
    assert title(figure).split("\n")[1] == "frozen: 1, weight 0: 3, gradient 0: 1, not finite: 1"


def test_every_devices_own_gradient_is_drawn_and_named():
    net = backward(dense_net([mx.cpu(0), mx.cpu(1), mx.cpu(2)]))
    left = plot_gradients(net).axes[0]
    weight = net[0].weight
    assert rows(left)[0] == pytest.approx(norm(weight.grad(mx.cpu(0))))
    for i in (1, 2):
        assert left.lines[i - 1].get_xdata()[0] == pytest.approx(norm(weight.grad(mx.cpu(i))))
    named = [text.get_text() for text in left.get_legend().get_texts()]
    assert named == ["gradient on cpu(0)", "gradient on cpu(1)", "gradient on cpu(2)", "weight"]


def test_sparse_gradients_and_shared_parameters():
    dense = nn.Dense(4, in_units=4, flatten=False, use_bias=False)
    again = nn.Dense(4, in_units=4, flatten=False, use_bias=False, params=dense.params)
    net = ready(nn.Embedding(20, 4, sparse_grad=True), dense, again)
    with pytest.raises(ValueError, match="every gradient of the net is 0"):
        plot_gradients(net)
    with autograd.record():
        loss = net(mx.nd.array([[1, 2, 2]])).sum()
    loss.backward()
    left = plot_gradients(net).axes[0]
    assert [text.get_text() for text in left.get_yticklabels()] == ["0.weight", "1.weight"]
    assert rows(left)[0] == pytest.approx(norm(net[0].weight.grad()))


def test_gradients_that_are_not_there():
    net = ready(nn.Dense(3))
    with pytest.raises(RuntimeError, match="initialization was deferred"):
        plot_gradients(net)
    net(normal(2, 4))
    with autograd.record():
        loss = (net(normal(2, 4)) * 0).sum()
    loss.backward()
    assert marks(plot_gradients(net)) == ["gradient 0", "gradient 0"]
    mxkit.freeze(net)
    with pytest.raises(ValueError, match=r"every gradient of the net is 0.* mxkit\.unfreeze"):
        plot_gradients(net)


@pytest.mark.parametrize(
    ("channels", "size", "labelled"),
    [
        *[(1, (5, 5), True), (7, (5, 5), True), (3, (2, 40), True), (3, (40, 2), True), (64, (2, 40), True)],
        *[long(n, (5, 5), True) for n in (2, 64, 150)],
        *[long(1, (2, 40), True), long(1, (40, 2), True), long(300, (40, 2), False), long(700, (5, 5), False)],
    ],
)
def test_labels_of_a_grid_lie_beside_the_channels_and_the_title_is_cut(channels, size, labelled):
    features = {"features.stage" * 30 + ".out": normal(1, channels, *size)}
    (figure,) = plot_features(features, channels=channels, image=DIGITS[0]).values()
    figure.canvas.draw()
    axes, _ = grid(figure, image=True)
    assert len(axes.texts) == (channels if labelled else 0)
    texts = [text.get_window_extent() for text in axes.texts]
    pictures = [picture.get_window_extent() for picture in axes.images[:20]]
    for text, other in itertools.chain(itertools.combinations(texts, 2), itertools.product(texts[:20], pictures)):
        assert not text.padded(-1).overlaps(other)
    heading = figure._suptitle.get_window_extent()
    assert all(figure.bbox.x0 <= one.x0 and one.x1 <= figure.bbox.x1 for one in [*texts, heading])
    assert "…" in title(figure)


def test_long_names_are_cut():
    names = [f"features.a_stage_with_a_long_name.{i}.body.conv.out" for i in range(3)]
    figure = plot_activations({name: normal(4, 10, 3, 3) for name in names})
    figure.canvas.draw()
    heads = [axes._left_title.get_window_extent() for axes in figure.axes]
    assert not any(one.overlaps(other) for one, other in itertools.combinations(heads, 2))
    assert all("…" in axes.get_title(loc="left") for axes in figure.axes)
    name = "a_head_with_a_long_name" * 6
    net = ready(hybrid_net(lambda net, F, x: getattr(net, name)(x), **{name: nn.Dense(4, in_units=4)}))
    assert "…" in plot_gradients(backward(net)).axes[0].get_yticklabels()[-1].get_text()


def test_names_are_no_mathematics_and_pyplot_is_left_alone():
    had, name = "matplotlib.pyplot" in sys.modules, "$\\frac$"
    plot_features({name: normal(1, 2)})[name].canvas.draw()
    plot_activations({name: normal(1, 2)}).canvas.draw()
    assert ("matplotlib.pyplot" in sys.modules) == had


def test_norms_of_large_gradients_are_exact():
    """T100."""
    net = ready(nn.Dense(2048, in_units=2048, use_bias=False), initializer=("normal", {"sigma": 1}))
    net.weight.grad()[:] = net.weight.data()
    assert rows(plot_gradients(net).axes[0])[0] == pytest.approx(norm(net.weight.data()), rel=1e-7)
