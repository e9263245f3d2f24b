"""Nets of one layer, and nets that are refused as a whole. Nothing here needs torch."""

from mxkit.errors import ExportError
from mxkit.exporting.to_torch.code import torch_files
from mxnet import gluon
from mxnet.gluon import nn, rnn
import pytest
from torch_nets import floats, initialized


@pytest.mark.parametrize("net", [rnn.LSTM(4), rnn.GRU(4, bidirectional=True), rnn.RNN(4)], ids=lambda net: net.prefix)
def test_a_recurrent_net_needs_no_first_states(net):
    text, weights, _ = torch_files(initialized(net), {"x": floats(3, 2, 5)})
    assert "    def forward(self, inputs: Tensor) -> Tensor:\n        inputs, _ = self." in text
    assert weights["rnn.weight_ih_l0"].shape[1] == 5


class Inside(gluon.HybridBlock):
    """A recurrent layer that torch does not have, inside a net."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def hybrid_forward(self, F, x):
        return F.relu(self.layer(x))


CLIPPED = {"state_clip_min": -1, "state_clip_max": 1}


def test_recurrent_layers_without_an_equivalent_are_named():
    bare = r"\n  the net \(LSTM\): RNN: lstm_state_clip_min and lstm_state_clip_max; torch does not clip"
    with pytest.raises(ExportError, match=bare):
        torch_files(initialized(rnn.LSTM(4, **CLIPPED)), {"x": floats(3, 2, 5)})
    with pytest.raises(ExportError, match=r"\n  'layer' \(LSTM\): RNN: lstm_state_clip_min"):
        torch_files(initialized(Inside(rnn.LSTM(4, **CLIPPED))), {"x": floats(3, 2, 5)})


class Condition(gluon.HybridBlock):
    def hybrid_forward(self, F, x):
        return F.contrib.cond(F.sum(x).reshape((1,)) > 0, lambda: x * 2, lambda: x * 3)


class Repeated(gluon.HybridBlock):
    def hybrid_forward(self, F, x):
        return F.contrib.while_loop(
            lambda s: F.sum(s).reshape((1,)) < 100, lambda s: (s, [s * 2]), [x], max_iterations=3
        )[1][0]


@pytest.mark.parametrize(("block", "operator"), [(Condition, "_cond"), (Repeated, "_while_loop")])
def test_operators_over_subgraphs_are_named(block, operator):
    net = nn.HybridSequential()
    net.add(nn.Dense(3), block())
    with pytest.raises(ExportError, match=rf"\n  '1' \({block.__name__}\): {operator}: a (condition|loop) over"):
        torch_files(initialized(net), {"x": floats(2, 4)})


class Same(gluon.HybridBlock):
    def hybrid_forward(self, F, x):
        return x


def test_a_net_that_computes_nothing():
    with pytest.raises(ExportError, match="the net returns its inputs and computes nothing"):
        torch_files(Same(), {"x": floats(2, 4)})
