"""Layers as ONNX compute what MXNet computes, at batch sizes that the net was not traced with."""

from mxkit.export.to_onnx.onnx_model import onnx_model
import mxnet as mx
import numpy as np
from onnx_graphs import (
    IMAGE,
    LINE,
    ROWS,
    TIME,
    VOLUME,
    S,
    b,
    boxes,
    check,
    graph_of_symbol,
    positive,
    regions,
    w,
    whole,
    words,
    x,
    y,
)
import pytest

onnxruntime = pytest.importorskip("onnxruntime", reason="mxkit[onnx] is not installed")

CASES = {
    # convolutions
    "conv": (S.Convolution(x, kernel=(3, 3), num_filter=6, pad=(1, 1), name="o"), IMAGE),
    "conv_plain": (S.Convolution(x, kernel=(3, 2), num_filter=6, name="o"), IMAGE),
    "conv_group_dilate": (
        S.Convolution(
            x, kernel=(3, 3), num_filter=8, num_group=4, dilate=(2, 1), stride=(1, 2), no_bias=True, name="o"
        ),
        IMAGE,
    ),
    "conv1d": (S.Convolution(x, kernel=(3,), num_filter=6, pad=(2,), stride=(2,), name="o"), LINE),
    "conv3d": (S.Convolution(x, kernel=(3, 2, 3), num_filter=2, pad=(1, 0, 1), name="o"), VOLUME),
    "deconv": (S.Deconvolution(x, kernel=(4, 4), num_filter=3, stride=(2, 2), pad=(1, 1), name="o"), IMAGE),
    "deconv_adj": (
        S.Deconvolution(
            x, kernel=(3, 3), num_filter=4, num_group=2, stride=(2, 3), pad=(1, 0), adj=(1, 2), no_bias=False, name="o"
        ),
        IMAGE,
    ),
    # oneDNN computes a target_shape only where it is the shape without padding
    "deconv_target": (
        S.Deconvolution(x, kernel=(2, 2), num_filter=3, stride=(2, 2), target_shape=(14, 18), name="o"),
        IMAGE,
    ),
    "deconv_dilate": (S.Deconvolution(x, kernel=(3, 3), num_filter=3, dilate=(2, 2), name="o"), IMAGE),
    "deconv1d": (S.Deconvolution(x, kernel=(3,), num_filter=3, stride=(2,), name="o"), LINE),
    # dense layers
    "fc": (S.FullyConnected(x, num_hidden=3, name="o"), IMAGE),
    "fc_no_bias": (S.FullyConnected(x, num_hidden=3, no_bias=True, name="o"), ROWS),
    "fc_last_axis": (S.FullyConnected(x, num_hidden=3, flatten=False, name="o"), TIME),
    "fc_last_axis_no_bias": (S.FullyConnected(x, num_hidden=3, flatten=False, no_bias=True, name="o"), TIME),
    # normalizations
    "bn": (S.BatchNorm(x, fix_gamma=False, eps=1e-5, name="o"), IMAGE),
    "bn_defaults": (S.BatchNorm(x, name="o"), IMAGE),
    "bn_last_axis": (S.BatchNorm(x, axis=-1, fix_gamma=False, name="o"), IMAGE),
    "bn_rows": (S.BatchNorm(x, fix_gamma=False, use_global_stats=True, name="o"), ROWS),
    "bn_sync": (S.contrib.SyncBatchNorm(x, fix_gamma=False, key="k", name="o"), IMAGE),
    "layer_norm": (S.LayerNorm(x, eps=1e-3, name="o"), TIME),
    "layer_norm_axis": (S.LayerNorm(x, axis=1, name="o"), IMAGE),
    "group_norm": (S.GroupNorm(x, num_groups=2, eps=1e-3, name="o"), IMAGE, {"o_gamma": (2,), "o_beta": (2,)}),
    "instance_norm": (S.InstanceNorm(x, name="o"), IMAGE),
    **{f"l2_{mode}": (S.L2Normalization(x, mode=mode), IMAGE) for mode in ("instance", "channel", "spatial")},
    "lrn": (S.LRN(x, nsize=3), IMAGE),
    "lrn_all": (S.LRN(x, nsize=5, alpha=0.5, beta=0.6, knorm=1.5), IMAGE),
    # activations
    **{f"act_{kind}": (S.Activation(x, act_type=kind), TIME) for kind in words("relu sigmoid tanh softrelu softsign")},
    **{f"leaky_{kind}": (S.LeakyReLU(x, act_type=kind)[0], TIME) for kind in words("leaky elu selu gelu")},
    "leaky_slope": (S.LeakyReLU(x, act_type="leaky", slope=0.1), TIME),
    "prelu": (S.LeakyReLU(x, act_type="prelu", name="o"), IMAGE),
    "prelu_one": (S.LeakyReLU(x, w, act_type="prelu"), IMAGE, {"w": (1,)}),
    "prelu_rows": (S.LeakyReLU(x, act_type="prelu", name="o"), ROWS),
    "prelu_square": (S.LeakyReLU(x, act_type="prelu", name="o"), {"x": (2, 5, 5, 5)}),
    "hard_sigmoid": (S.hard_sigmoid(x, alpha=0.3, beta=0.4), TIME),
    "softmax": (S.softmax(x), TIME),
    "softmax_axis": (S.softmax(x, axis=1, temperature=2.5), TIME),
    "softmax_length": (
        S.softmax(x, y, axis=1, use_length=True),
        {"x": (2, 5, 6), "y": (2, 6)},
        {},
        {"y": "int32"},
        {"y": whole(6, 1)},
    ),
    "log_softmax": (S.log_softmax(x, axis=1), TIME),
    "softmin": (S.softmin(x, axis=1), TIME),
    "softmax_activation": (S.SoftmaxActivation(x), IMAGE),
    "softmax_activation_channel": (S.SoftmaxActivation(x, mode="channel"), IMAGE),
    "dropout": (S.Dropout(x), ROWS),
    # pooling
    **{
        f"pool_{kind}_{convention}": (
            S.Pooling(x, kernel=(3, 2), stride=(2, 2), pad=(1, 0), pool_type=kind, pooling_convention=convention),
            {"x": (2, 3, 8, 9)},
        )
        for kind in ("max", "avg", "sum")
        for convention in ("valid", "full")
    },
    "pool_avg_inside": (
        S.Pooling(x, kernel=(3, 3), stride=(1, 1), pad=(1, 1), pool_type="avg", count_include_pad=False),
        IMAGE,
    ),
    "pool_avg_full_inside": (
        S.Pooling(
            x,
            kernel=(3, 3),
            stride=(2, 2),
            pad=(1, 1),
            pool_type="avg",
            count_include_pad=False,
            pooling_convention="full",
        ),
        {"x": (2, 3, 8, 10)},
    ),
    "pool_full_beyond": (
        S.Pooling(x, kernel=(2, 2), stride=(3, 3), pool_type="max", pooling_convention="full"),
        {"x": (2, 3, 8, 9)},
    ),
    "pool_full_padded": (
        S.Pooling(x, kernel=(2, 2), stride=(2, 2), pad=(1, 1), pool_type="max", pooling_convention="full"),
        {"x": (2, 3, 7, 9)},
    ),
    **{
        f"pool_lp{order}": (S.Pooling(x, kernel=(2, 2), pool_type="lp", p_value=order), IMAGE, {}, {}, {"x": positive})
        for order in (1, 2, 3)
    },
    **{
        f"pool_global_{kind}": (S.Pooling(x, kernel=(1, 1), global_pool=True, pool_type=kind), IMAGE)
        for kind in ("max", "avg", "sum")
    },
    "pool_1d": (S.Pooling(x, kernel=(3,), stride=(2,), pad=(1,), pool_type="avg"), LINE),
    "pool_3d": (S.Pooling(x, kernel=(2, 2, 3), stride=(2, 1, 2), pool_type="max", pooling_convention="full"), VOLUME),
    **{f"adaptive_{size}": (S.contrib.AdaptiveAvgPooling2D(x, output_size=size), IMAGE) for size in (1, (3, 4), 6)},
    # resizing and padding
    "upsampling": (S.UpSampling(x, scale=2, sample_type="nearest"), IMAGE),
    "upsampling_two": (
        S.UpSampling(x, y, scale=2, sample_type="nearest", num_args=2),
        {"x": (2, 3, 4, 6), "y": (2, 2, 2, 3)},
    ),
    "upsampling_bilinear": (
        S.UpSampling(x, w, scale=3, sample_type="bilinear", num_filter=4, num_args=2),
        IMAGE,
        {"w": (4, 1, 5, 5)},
    ),
    **{
        f"resize_{height}_{width}_{corners}": (
            S.contrib.BilinearResize2D(x, height=height, width=width, align_corners=corners),
            IMAGE,
        )
        for height, width, corners in [(14, 13, True), (14, 13, False), (3, 4, True), (3, 4, False), (1, 5, True)]
    },
    "resize_scale": (S.contrib.BilinearResize2D(x, scale_height=2, scale_width=1.5, mode="odd_scale"), IMAGE),
    "resize_like": (
        S.contrib.BilinearResize2D(x, y, mode="like", align_corners=False),
        {"x": (2, 3, 4, 6), "y": (2, 2, 9, 5)},
    ),
    **{
        f"pad_{mode}": (S.Pad(x, mode=mode, pad_width=(0, 0, 0, 0, 1, 2, 3, 0), constant_value=0.5), IMAGE)
        for mode in ("constant", "edge", "reflect")
    },
    # attention
    "self_attention": (
        S.contrib.interleaved_matmul_selfatt_valatt(
            x, S.softmax(S.contrib.interleaved_matmul_selfatt_qk(x, heads=2)), heads=2
        ),
        {"x": (5, 2, 24)},
        {},
        {},
        {},
        {"x": 1},
    ),
    "attention": (
        S.contrib.interleaved_matmul_encdec_valatt(
            y, S.softmax(S.contrib.interleaved_matmul_encdec_qk(x, y, heads=2)), heads=2
        ),
        {"x": (5, 2, 8), "y": (3, 2, 16)},
        {},
        {},
        {},
        {"x": 1, "y": 1},
    ),
    # recurrent layers
    **{
        f"{mode}_{layers}_{both}": (
            S.RNN(
                x,
                w,
                y,
                *([b] if mode == "lstm" else []),
                mode=mode,
                num_layers=layers,
                state_size=3,
                bidirectional=both,
                state_outputs=True,
            ),
            {"x": (5, 2, 4), **dict.fromkeys("yb" if mode == "lstm" else "y", (layers * (1 + both), 2, 3))},
            {},
            {},
            {},
            {"x": 1, "y": 1, "b": 1},
        )
        for mode in ("lstm", "gru", "rnn_tanh", "rnn_relu")
        for layers, both in ((1, False), (2, True))
    },
    "rnn_zeros": (
        S.RNN(x, w, S.zeros((1, 0, 3)), mode="gru", num_layers=1, state_size=3),
        {"x": (5, 2, 4)},
        {},
        {},
        {},
        {"x": 1},
    ),
    "rnn_batch_first": (
        S.RNN(S.SwapAxis(x, dim1=0, dim2=1), w, S.zeros((1, 0, 3)), mode="gru", num_layers=1, state_size=3),
        {"x": (2, 5, 4)},
    ),
    # regions and boxes
    "roi_align": (
        S.contrib.ROIAlign(w, x, pooled_size=(3, 2), spatial_scale=0.5, sample_ratio=2),
        {"x": (2, 5)},
        {"w": (2, 3, 8, 9)},
        {},
        {"x": regions},
    ),
    "roi_align_adaptive": (
        S.contrib.ROIAlign(w, x, pooled_size=(3, 2), spatial_scale=0.5, aligned=True),
        {"x": (2, 5)},
        {"w": (2, 3, 8, 9)},
        {},
        {"x": regions},
    ),
    "roi_pooling": (
        S.ROIPooling(w, x, pooled_size=(3, 2), spatial_scale=0.5),
        {"x": (2, 5)},
        {"w": (2, 3, 8, 9)},
        {},
        {"x": regions},
    ),
    **{
        f"box_decode_{kind}": (
            S.contrib.box_decode(x, w, std0=0.1, std1=0.2, std2=0.3, std3=0.4, clip=limit, format=kind),
            {"x": (2, 6, 4)},
            {"w": np.sort(positive((1, 6, 4)))},
        )
        for kind, limit in (("center", -1), ("corner", 0.5))
    },
    **{
        f"box_nms_{number}": (S.contrib.box_nms(x, **given), {"x": (2, 40, 6)}, {}, {}, {"x": boxes})
        for number, given in enumerate(
            [
                {"overlap_thresh": 0.3, "valid_thresh": 0.1, "id_index": 0},
                {"overlap_thresh": 0.3, "valid_thresh": 0.1, "id_index": 0, "topk": 11, "background_id": 1},
                {"overlap_thresh": 0.2, "id_index": 0, "force_suppress": True},
                {"overlap_thresh": 0.2, "topk": 7},
                {"overlap_thresh": 0.2, "valid_thresh": 5},
            ]
        )
    },
    "anchors": (S.contrib.MultiBoxPrior(x, sizes=(0.5, 0.25), ratios=(1, 2, 0.5), steps=(0.1, 0.2)), IMAGE),
}


@pytest.mark.parametrize("name", CASES)
def test_an_operator(name):
    check(CASES[name])


@pytest.mark.parametrize("target", [(13, 17), (14, 18), (15, 20), (16, 19)])
def test_target_shape_of_a_deconvolution(target):
    # MXNet computes it in float64, where oneDNN takes no part
    symbol = S.Deconvolution(x, kernel=(4, 4), num_filter=3, stride=(2, 2), target_shape=target, name="o")
    graph = graph_of_symbol(symbol, {"x": (2, 4, 7, 9)}, {})
    model = onnx_model(graph, [(2, 4, 7, 9)], ["float32"], {})
    data = np.random.RandomState(0).uniform(-1, 1, (3, 4, 7, 9))
    weight = graph.arrays["arg:o_weight"].astype("float64")
    expected = mx.nd.Deconvolution(
        mx.nd.array(data, dtype="float64"), weight, kernel=(4, 4), num_filter=3, stride=(2, 2), target_shape=target
    )
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    actual = session.run(None, {"x": data.astype("float32")})[0]
    np.testing.assert_allclose(actual, expected.asnumpy(), rtol=1e-5, atol=1e-5)
