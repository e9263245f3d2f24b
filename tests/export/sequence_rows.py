"""Rows of sequences, attention and boxes."""

import numpy as np
from operator_rows import BCHW, S, above, anchors, boxes, regions, row, shares


def lengths(random, shape):
    """Lengths of sequences of 5 steps."""
    return random.integers(1, 5, shape).astype("float32")


def fractions(random, shape):
    """Lengths that are no whole numbers; MXNet leaves their fractions out."""
    return np.resize([1.5, 3.9, 2.1], shape).astype("float32")


def attention(name, *shapes):
    operator = getattr(S.contrib, f"interleaved_matmul_{name}")
    return row(name, lambda *inputs: operator(*inputs, heads=2), *shapes)


SEQUENCES = [
    *(
        row(
            f"{kind} fractions",
            lambda x, n, kind=kind: getattr(S, kind)(x, n, use_sequence_length=True),
            (5, "B", 2),
            ("B",),
            draw={1: fractions},
            gradients=False,
        )
        for kind in ("SequenceMask", "SequenceLast", "SequenceReverse")
    ),
    row(
        "SequenceMask",
        lambda x, n: S.SequenceMask(x, n, use_sequence_length=True, value=-3),
        (5, "B", 2),
        ("B",),
        draw={1: lengths},
        gradients=False,
    ),
    row(
        "SequenceMask axis",
        lambda x, n: S.SequenceMask(x, n, use_sequence_length=True, axis=1),
        ("B", 5),
        ("B",),
        draw={1: lengths},
        gradients=False,
    ),
    row("SequenceMask none", lambda x: S.SequenceMask(x, value=-3), (5, "B", 2), gradients=False),
    row(
        "SequenceLast",
        lambda x, n: S.SequenceLast(x, n, use_sequence_length=True),
        (5, "B", 2),
        ("B",),
        draw={1: lengths},
        gradients=False,
    ),
    row(
        "SequenceLast axis",
        lambda x, n: S.SequenceLast(x, n, use_sequence_length=True, axis=1),
        ("B", 5, 2),
        ("B",),
        draw={1: lengths},
        gradients=False,
    ),
    row("SequenceLast none", lambda x: S.SequenceLast(x, axis=1), ("B", 5, 2), gradients=False),
    row(
        "SequenceReverse",
        lambda x, n: S.SequenceReverse(x, n, use_sequence_length=True),
        (5, "B", 2),
        ("B",),
        draw={1: lengths},
        gradients=False,
    ),
    row("SequenceReverse none", lambda x: S.SequenceReverse(x), (5, "B", 2), gradients=False),
    attention("selfatt_qk", (5, "B", 24)),
    attention("selfatt_valatt", (5, "B", 24), ("2B", 5, 5)),
    attention("encdec_qk", (3, "B", 8), (5, "B", 16)),
    attention("encdec_valatt", (5, "B", 16), ("2B", 3, 5)),
    row(
        "box_nms",
        lambda x: S.contrib.box_nms(x, overlap_thresh=0.2, id_index=0, valid_thresh=0.2),
        ("B", 12, 6),
        draw=boxes,
        gradients=False,
    ),
    row(
        "box_nms topk",
        lambda x: S.contrib.box_nms(x, overlap_thresh=0.3, topk=5, force_suppress=True, id_index=0),
        ("B", 12, 6),
        draw=boxes,
        gradients=False,
    ),
    row(
        "box_nms background",
        lambda x: S.contrib.box_nms(x, overlap_thresh=0.2, id_index=0, background_id=0),
        ("B", 12, 6),
        draw=boxes,
        gradients=False,
    ),
    row("box_nms 2d", lambda x: S.contrib.box_nms(x, overlap_thresh=0.2), (9, 6), draw=boxes, gradients=False),
    row(
        "box_decode",
        lambda x, a: S.contrib.box_decode(x, a, std0=0.1, std1=0.2, std2=0.3, std3=0.4, clip=0.2),
        ("B", 5, 4),
        (1, 5, 4),
        draw=above(0.2),
        gradients=False,
    ),
    row(
        "box_decode corner",
        lambda x, a: S.contrib.box_decode(x, a, format="corner"),
        ("B", 5, 4),
        (1, 5, 4),
        draw=above(0.2),
        gradients=False,
    ),
    row(
        "MultiBoxPrior",
        lambda x: S.contrib.MultiBoxPrior(x, sizes=(0.5, 0.3), ratios=(1, 2, 0.5)),
        ("B", 3, 4, 6),
        gradients=False,
    ),
    row(
        "MultiBoxPrior steps",
        lambda x: S.contrib.MultiBoxPrior(
            x, sizes=(0.5,), ratios=(2, 1), steps=(0.2, 0.3), offsets=(0.4, 0.6), clip=True
        ),
        ("B", 3, 4, 6),
        gradients=False,
    ),
    row(
        "ROIAlign",
        lambda x, b: S.contrib.ROIAlign(x, b, pooled_size=(3, 2), spatial_scale=0.7, sample_ratio=2),
        (2, 3, 9, 9),
        ("B", 5),
        draw={1: regions},
        gradients=False,
    ),
    row(
        "ROIAlign aligned",
        lambda x, b: S.contrib.ROIAlign(x, b, pooled_size=(2, 2), spatial_scale=0.7, sample_ratio=3, aligned=True),
        (2, 3, 9, 9),
        ("B", 5),
        draw={1: regions},
        gradients=False,
    ),
    *(
        row(
            f"MultiBoxDetection {attrs}",
            lambda p, x, a, attrs=attrs: S.contrib.MultiBoxDetection(p, x, a, **attrs),
            ("B", 4, 30),
            ("B", 120),
            (1, 30, 4),
            draw={0: shares, 1: above(-0.5, 0.5), 2: anchors},
            gradients=False,
        )
        for attrs in (
            {"nms_threshold": 0.1},
            {"nms_threshold": 0.1, "nms_topk": 5, "threshold": 0.3},
            {
                "nms_threshold": 0.2,
                "threshold": 0.3,
                "force_suppress": True,
                "clip": False,
                "variances": (0.2, 0.3, 0.4, 0.5),
            },
        )
    ),
    row("GridGenerator", lambda x: S.GridGenerator(x, transform_type="affine", target_shape=(3, 5)), ("B", 6)),
    row(
        "SpatialTransformer",
        lambda x, m: S.SpatialTransformer(x, m, transform_type="affine", sampler_type="bilinear", target_shape=(3, 4)),
        BCHW,
        ("B", 6),
        draw={1: above(-0.8, 0.8)},
        gradients=False,
    ),
    row(
        "BilinearSampler",
        lambda x, g: S.BilinearSampler(x, g),
        BCHW,
        ("B", 2, 3, 4),
        draw={1: above(-1.2, 1.2)},
        gradients=False,
    ),
]

SEQUENCE_ROWS = [*SEQUENCES]
