"""Pictures of nets: their boxes, arrows and shapes."""

import xml.etree.ElementTree as ElementTree

from built_nets import plain_net
import mxkit
import mxnet as mx
import pytest
from sharing import command, image_run


def texts(figure):
    return [one.get_text() for one in figure.axes[0].texts if one.get_text()]


def arrows(figure):
    return [one for one in figure.axes[0].texts if getattr(one, "arrow_patch", None)]


def test_layers_of_lenet_with_their_shapes(kind, tmp_path):
    net = kind.net(lambda: mxkit.models.get_model("lenet"))
    with kind.switches():  # a net without values has no kind of its own
        figure = mxkit.plots.graph(net, (1, 1, 28, 28), path=tmp_path / "lenet.svg")
    shown = texts(figure)
    assert [shown[number] for number in range(2, len(shown), 3)] == list("0123456")  # a layer and its activation
    assert shown[:5] == ["data0", "(1, 1, 28, 28)", "0", "Conv2D 5x5", "(1, 20, 24, 24)"]
    assert shown[-2:] == ["Dense", "(1, 10)"]
    assert len(arrows(figure)) == 7
    assert ElementTree.parse(str(tmp_path / "lenet.svg")).getroot().tag.endswith("svg")


def test_a_shortcut_passes_beside_the_boxes_and_folds():
    net = mxkit.models.get_model("resnet18")
    figure = mxkit.plots.graph(net, (1, 3, 32, 32))
    assert texts(figure).count("add") == 8
    assert len(arrows(figure)) == len(figure.axes[0].patches) - 1 + 8  # one more arrow for each sum
    folded = mxkit.plots.graph(net, (1, 3, 32, 32), depth=1)
    assert len(folded.axes[0].patches) == len(net) + 1
    assert len(mxkit.plots.graph(net, (1, 3, 32, 32), depth=0).axes[0].patches) == 2


def test_boxes_do_not_overlap():
    figure = mxkit.plots.graph(mxkit.models.get_model("googlenet", classes=2), (1, 3, 96, 96))
    edges = [one.get_bbox() for one in figure.axes[0].patches]
    assert len(edges) > 80
    for number, one in enumerate(edges):
        assert not any(one.overlaps(other) for other in edges[:number])


def test_what_cannot_be_drawn_is_refused():
    net = plain_net(lambda net, x: mx.nd.array(x.asnumpy()))
    with pytest.raises(ValueError, match="expected HybridBlocks; Net has no graph: .*asnumpy"):
        mxkit.plots.graph(net, (1, 2))
    with pytest.raises(ValueError, match="expected an array or a shape"):
        mxkit.plots.graph(mx.gluon.nn.Dense(2))


def test_the_command_draws_a_run(tmp_path):
    run = image_run(tmp_path)
    code, out, err = command("layers", run, "--picture", tmp_path / "net.svg")
    assert (code, err) == (0, "")
    assert "Conv2D" in out
    assert "<svg" in (tmp_path / "net.svg").read_text(encoding="utf-8")
    assert command("layers", run, "--picture", tmp_path / "net.txt")[0] == 2
