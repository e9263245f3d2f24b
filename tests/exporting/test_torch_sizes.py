"""Converted nets at other sizes of images than the traced one."""

from mxkit.exporting.to_torch.code import torch_files
import mxnet as mx
from mxnet.gluon import nn
import numpy as np
import pytest

pytestmark = pytest.mark.torch


def pooled(**attrs):
    return lambda F, x: F.Pooling(x, pooling_convention="full", **attrs)


def up(F, x):
    return F.UpSampling(x, F.slice(x, begin=(0, 0, 0, 0), end=(None,) * 4, step=(1, 1, 2, 2)), **UP)


def resized(**attrs):
    return lambda F, x: F.contrib.BilinearResize2D(x, **attrs)


UP = {"scale": 2, "sample_type": "nearest", "num_args": 2}
PAIR = {"kernel": (2, 2), "stride": (3, 3), "pad": (1, 1)}
NETS = {
    "max": pooled(**PAIR),
    "max native": pooled(kernel=(3, 3), stride=(2, 2), pad=(1, 1)),
    "max without padding": pooled(kernel=(1, 1), stride=(2, 2)),
    "max wide padding": pooled(kernel=(3, 3), stride=(2, 2), pad=(2, 2)),
    "avg": pooled(kernel=(2, 2), stride=(2, 2), pad=(1, 1), pool_type="avg"),
    "avg native": pooled(kernel=(3, 2), stride=(2, 1), pool_type="avg"),
    "avg inside": pooled(kernel=(3, 3), stride=(2, 2), pad=(2, 1), pool_type="avg", count_include_pad=False),
    "avg without padding": pooled(kernel=(1, 1), stride=(3, 3), pool_type="avg"),
    "crop": lambda F, x: F.Crop(F.UpSampling(x, scale=2, sample_type="nearest"), x, offset=(1, 0), num_args=2),
    "crop centre": lambda F, x: F.Crop(x, h_w=(4, 3), center_crop=True),
    "crop like": lambda F, x: F.Crop(F.Pad(x, **PAD), x, center_crop=True, num_args=2),
    "slice": lambda F, x: F.slice(x, begin=(0, 0, 5, -2), end=(None, None, 1, None), step=(1, 1, -2, -1)),
    "upsampling": up,
    "scale": resized(scale_height=1.7, scale_width=2, mode="size"),
    "odd_scale": resized(scale_height=1.7, scale_width=0.6, mode="odd_scale"),
    **{mode: resized(mode=mode) for mode in ("to_even_down", "to_even_up", "to_odd_down", "to_odd_up")},
}
PAD = {"mode": "constant", "pad_width": (0, 0, 0, 0, 1, 2, 2, 1), "constant_value": 1}
TRACED = {"upsampling": (8, 8)}
SIZES = [(8, 8), (10, 10), (11, 7), (6, 9)]


def converted(torch, net, x):
    """The converted net, as its file makes it."""
    text, weights, source = torch_files(net, {"x": x})
    names = {"__name__": "converted"}
    exec(compile(text, "<converted>", "exec"), names)
    made = names[source.classes[-1].name]()
    made.load_state_dict({key: torch.tensor(value) for key, value in weights.items()})
    return made.eval()


@pytest.mark.parametrize("name", NETS)
@pytest.mark.filterwarnings("ignore:Operator Crop")
def test_other_sizes_than_the_traced_one(name):
    torch = pytest.importorskip("torch")
    net = nn.HybridLambda(NETS[name])
    random = np.random.RandomState(0)
    made = converted(torch, net, random.uniform(-1, 1, (2, 3, *TRACED.get(name, (9, 9)))).astype("f"))
    for size in SIZES:
        size = tuple(one - one % 2 for one in size) if name == "upsampling" else size
        x = random.uniform(-1, 1, (2, 3, *size)).astype("f")
        np.testing.assert_allclose(made(torch.tensor(x)).numpy(), net(mx.nd.array(x)).asnumpy(), 1e-5, 1e-6)


class Deconvolution(mx.gluon.HybridBlock):
    def __init__(self):
        super().__init__()
        self.weight = self.params.get("weight", shape=(3, 4, 4, 4))
        self.bias = self.params.get("bias", shape=(4,))

    def hybrid_forward(self, F, x, weight, bias):
        return F.Deconvolution(x, weight, bias, **TARGET)


TARGET = {"kernel": (4, 4), "stride": (2, 2), "pad": (2, 2), "num_filter": 4, "no_bias": False}
TARGET["target_shape"] = (10, 10)


def test_a_transposed_convolution_with_a_target_shape():
    torch = pytest.importorskip("torch")
    net = Deconvolution()
    net.initialize(mx.init.Normal(1))
    made = converted(torch, net, np.ones((2, 3, 6, 6), "f")).double()
    net.cast("float64")  # oneDNN takes the stated padding, which fits one size
    for size in ((5, 6), (6, 5), (7, 7)):
        x = np.random.RandomState(0).uniform(-1, 1, (2, 3, *size))
        expected = net(mx.nd.array(x, dtype="float64")).asnumpy()
        np.testing.assert_allclose(made(torch.tensor(x)).detach().numpy(), expected, 1e-9, 1e-9)
