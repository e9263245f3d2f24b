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
]
