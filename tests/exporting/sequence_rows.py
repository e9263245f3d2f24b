"""Rows of sequences, attention and boxes."""

import numpy as np
from operator_rows import S, above, boxes, lengths, row


def fractions(random, shape):
    """Lengths that are no whole numbers; MXNet leaves their fractions out."""
    return np.resize([1.5, 3.9, 2.1], shape).astype("float32")


def attention(name, *shapes):
    operator = getattr(S.contrib, f"interleaved_matmul_{name}")
    return row(name, lambda *inputs: operator(*inputs, heads=2), *shapes)


STEPS = lengths("float32")


def sequence(name, shape, draw=STEPS, **attrs):
    """An operator of sequences with their lengths."""
    operator = getattr(S, name.split()[0])
    make = lambda x, n: operator(x, n, use_sequence_length=True, **attrs)  # noqa: E731
    return row(name, make, shape, ("B",), draw={1: draw}, gradients=False)


def detection(name, operator, *shapes, draw=None, **attrs):
    """An operator of boxes."""
    made = getattr(S.contrib, operator)
    return row(name, lambda *inputs: made(*inputs, **attrs), *shapes, draw=draw, gradients=False)


def regions(random, shape):
    """Boxes of images 0 and 1, partly outside, or with no area; corners of every other one are whole numbers."""
    corner, size = random.uniform(-9, 14, (*shape[:-1], 2)), random.uniform(-1, 12, (*shape[:-1], 2))
    made = np.concatenate([random.integers(0, 2, (*shape[:-1], 1)), corner, corner + size], -1)
    made[:, ::2] = np.round(made[:, ::2])
    return made.astype("float32")


def corners(random, shape):
    """As `regions`, without the image; where a side is negative, MXNet's overlap is none."""
    return regions(random, (*shape[:-1], 5))[..., 1:]


def sides(random, shape):
    """As `regions`, of which each has an area, without which MXNet's aligned operator ends the process."""
    made = regions(random, shape)
    made[..., 3:] = np.maximum(made[..., 3:], made[..., 1:3] + 1)
    return made


def aligned(name, channels=3, draw=regions, **attrs):
    """Cells of twenty boxes for each sample."""
    make = lambda x, y: S.contrib.ROIAlign(x, y.reshape((-1, 5)), **{"spatial_scale": 0.5, **attrs})  # noqa: E731
    return row(f"ROIAlign {name}", make, (2, channels, 5, 7), ("B", 20, 5), draw={1: draw})


NMS = ("box_nms", ("B", 12, 6))
DECODED = (("B", 5, 4), (1, 5, 4))
SEQUENCE_ROWS = [
    *(sequence(f"{kind} fractions", (5, "B", 2), fractions) for kind in ("SequenceMask", "SequenceReverse")),
    sequence("SequenceMask", (5, "B", 2), value=-3),
    sequence("SequenceMask axis", ("B", 5), axis=1),
    row("SequenceMask none", lambda x: S.SequenceMask(x, value=-3), (5, "B", 2), gradients=False),
    sequence("SequenceReverse", (5, "B", 2)),
    row("SequenceReverse none", lambda x: S.SequenceReverse(x), (5, "B", 2), gradients=False),
    attention("selfatt_qk", (5, "B", 24)),
    attention("selfatt_valatt", (5, "B", 24), ("2B", 5, 5)),
    attention("encdec_qk", (3, "B", 8), (5, "B", 16)),
    attention("encdec_valatt", (5, "B", 16), ("2B", 3, 5)),
    detection("box_nms", *NMS, draw=boxes, overlap_thresh=0.2, id_index=0, valid_thresh=0.2),
    detection("box_nms topk", *NMS, draw=boxes, overlap_thresh=0.3, topk=5, force_suppress=True, id_index=0),
    detection("box_nms background", *NMS, draw=boxes, overlap_thresh=0.2, id_index=0, background_id=0),
    detection("box_nms 2d", "box_nms", (9, 6), draw=boxes, overlap_thresh=0.2),
    detection("box_decode", "box_decode", *DECODED, draw=above(0.2), std0=0.1, std1=0.2, std2=0.3, std3=0.4, clip=0.2),
    detection("box_decode corner", "box_decode", *DECODED, draw=above(0.2), format="corner"),
    detection("box_iou", "box_iou", ("B", 4), (9, 4), draw={0: corners, 1: corners}),
    *(aligned(f"of {samples} samples", pooled_size=(3, 2), sample_ratio=samples) for samples in (-1, 0, 1, 2, 3)),
    aligned("of the same size", pooled_size=(1, 4), sample_ratio=2, spatial_scale=1),
    *(aligned(f"aligned {n}", pooled_size=(2, 3), sample_ratio=n, aligned=True, draw=sides) for n in (-1, 2)),
    aligned("by position", 12, pooled_size=(3, 2), sample_ratio=2, position_sensitive=True),
]
