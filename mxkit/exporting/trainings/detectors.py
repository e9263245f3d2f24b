"""What the losses of detectors need: arguments from the net, its outputs in training, and double precision."""

from contextlib import contextmanager, nullcontext
from typing import Any, ContextManager, Dict, Iterator, List, Tuple

from mxnet import autograd

# Losses with a template of their own: targets as gluoncv's generators make them, and the loss of each image.
LOSSES = ("centernet", "ssd", "yolo3")

# Those of YOLOV3's outputs in training that its loss reads; the others are constants.
_YOLO3_OUTPUTS = (0, 4, 5, 6, 7)


def arguments_of(net: Any, size: Tuple[int, ...]) -> Dict[str, Any]:
    """What a loss takes from the net.

    Args:
        net: A detector.
        size: Height and width of the images.
    """
    if not hasattr(net, "yolo_outputs"):
        return {"scale": float(net.scale)} if hasattr(net, "heatmap_nms") else {}
    layers = ""
    for one in net.yolo_outputs:
        anchors = one.anchors.data().reshape((-1, 2)).asnumpy().tolist()
        layers += f"    {(size[0] // one._stride, size[1] // one._stride, anchors)},\n"
    return {"size": size, "layers": layers, "ignored": net._ignore_iou_thresh}


@contextmanager
def _forward_replaced(block: Any, forward: Any) -> Iterator[None]:
    block.hybrid_forward = forward
    try:
        yield
    finally:
        del block.hybrid_forward


@contextmanager
def traced_in_training(net: Any) -> Iterator[None]:
    """Let a detector be traced with the outputs that its loss reads."""
    own = net.hybrid_forward

    def chosen(F: Any, *inputs: Any) -> List[Any]:  # noqa: N803
        outputs = own(F, *inputs)
        return [outputs[place] for place in _YOLO3_OUTPUTS]

    replaced = _forward_replaced(net, chosen) if hasattr(net, "yolo_outputs") else nullcontext()
    with autograd.train_mode(), replaced:
        yield


class _Wide:
    """MXNet's operators, but `cast` gives float64."""

    def __init__(self, operators: Any) -> None:
        self._operators = operators

    def __getattr__(self, name: str) -> Any:
        return (lambda x, _: self._operators.cast(x, "float64")) if name == "cast" else getattr(self._operators, name)


def in_double_precision(net: Any) -> ContextManager[Any]:
    """Let the loss that YOLOV3 holds compute in double precision: its code casts to float32."""
    if not hasattr(net, "yolo_outputs"):
        return nullcontext()
    own = net._loss.hybrid_forward
    return _forward_replaced(net._loss, lambda operators, *arrays: own(_Wide(operators), *arrays))
