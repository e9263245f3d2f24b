"""What the losses of detectors need: arguments from the net, its outputs in training, and double precision."""

from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from operator import itemgetter
from types import SimpleNamespace
from typing import Any, ContextManager, Dict, Iterator, List, Mapping, Sequence, Tuple

from mxkit.core.blocks import blocks_by_path
from mxkit.exporting.to_torch.expressions import DRAWS
from mxkit.exporting.trainings.replay import calls, drawn
from mxkit.recipe.schema import Recipe
import mxnet as mx
from mxnet import autograd
from mxnet.gluon import nn
import numpy as np

# Losses with a template of their own: targets as gluoncv's generators make them, and the loss of each image.
LOSSES = ("centernet", "faster_rcnn", "ssd", "yolo3")

# Outputs in training that a loss reads, of YOLOV3 and of FasterRCNN
_YOLO3_OUTPUTS = (0, 4, 5, 6, 7)
_REGION_OUTPUTS = (0, 1, 5, 6, 7, 8, 9, 10)


def _has_regions(net: Any) -> bool:
    """Whether it is gluoncv's FasterRCNN."""
    return type(getattr(net, "sampler", None)).__name__ == "RCNNTargetSampler"


def arguments_of(net: Any, size: Tuple[int, ...]) -> Dict[str, Any]:
    """What a loss takes from the net.

    Args:
        net: A detector.
        size: Height and width of the images.
    """
    if _has_regions(net):
        return {"size": size}
    if not hasattr(net, "yolo_outputs"):
        return {"scale": float(net.scale)} if hasattr(net, "heatmap_nms") else {}
    layers = ""
    for one in net.yolo_outputs:
        anchors = one.anchors.data().reshape((-1, 2)).asnumpy().tolist()
        layers += f"    {(size[0] // one._stride, size[1] // one._stride, anchors)},\n"
    return {"size": size, "layers": layers, "ignored": net._ignore_iou_thresh}


def validated_as_trained(recipe: Recipe) -> Recipe:
    """The recipe, of Faster R-CNN with validation in batches of training: its net takes no other number of images."""
    if str(recipe.loss.name) == "faster_rcnn":
        settings = recipe.data.model_copy(update={"eval_batch_size": recipe.data.batch_size})
        recipe = recipe.model_copy(update={"data": settings})
    return recipe


def inputs_of(net: Any, example: Sequence[Any], labels: Sequence[Any]) -> List[Any]:
    """What a detector takes in training, of an example: FasterRCNN the boxes and classes of one image, too."""
    if not _has_regions(net):
        return list(example)
    images = net.sampler._num_image
    return [example[0][:images], labels[0][:images, :, :4], labels[0][:images, :, 4:5]]


@contextmanager
def _forward_replaced(block: Any, forward: Any) -> Iterator[None]:
    """Let `forward(F, ...)` compute in place of a block's own."""
    before = vars(block).get("hybrid_forward")
    block.hybrid_forward = forward
    try:
        yield
    finally:
        del block.hybrid_forward
        if before is not None:
            block.hybrid_forward = before


@contextmanager
def traced_in_training(net: Any) -> Iterator[None]:
    """Let a detector be traced with the outputs that its loss reads."""
    own = net.hybrid_forward

    def of_yolo3(F: Any, *inputs: Any) -> List[Any]:  # noqa: N803
        return list(itemgetter(*_YOLO3_OUTPUTS)(own(F, *inputs)))

    def of_regions(F: Any, x: Any, boxes: Any, classes: Any) -> List[Any]:  # noqa: N803
        chosen = itemgetter(*_REGION_OUTPUTS)(own(F, x, boxes, classes))
        return [F.concat(*one, dim=1) if isinstance(one, (list, tuple)) else one for one in chosen]

    with ExitStack() as stack:
        stack.enter_context(autograd.train_mode())
        if hasattr(net, "yolo_outputs"):
            stack.enter_context(_forward_replaced(net, of_yolo3))
        if _has_regions(net):
            stack.enter_context(_forward_replaced(net, of_regions))
            stack.enter_context(_with(net.sampler, random=_named))
            stack.enter_context(_with(net.target_generator._box_encoder, **_WITHOUT_ENCODE))
        yield


# Without `box_encode` gluoncv takes its way for MXNet 1.4, which has neither Parameters nor float32.
_WITHOUT_ENCODE: Mapping[str, Any] = {"contrib": lambda _: SimpleNamespace()}


def _with(block: Any, **changed: Any) -> ContextManager[Any]:
    """Let a block compute with functions of MXNet's operators in place of some of them."""
    own = block.hybrid_forward

    @wraps(own)  # with its names of arguments, which the traced net has
    def forward(operators: Any, *arrays: Any, **named: Any) -> Any:
        found = {name: one(operators) for name, one in changed.items()}
        return own(SimpleNamespace(**{**vars(operators), **found}), *arrays, **named)

    return _forward_replaced(block, forward)


def _named(operators: Any) -> Any:
    return SimpleNamespace(uniform=partial(operators.random.uniform, name=DRAWS))


@contextmanager
def with_given_draws(net: Any) -> Iterator[None]:
    """Let FasterRCNN take the numbers of `drawn`, and order equal ones by their place, as torch does.

    Side effects:
        The blocks that draw are not hybridized any more.
    """
    if not _has_regions(net):
        yield
        return
    from gluoncv.model_zoo.rcnn.rpn import rpn_target

    def in_order(x: Any, is_ascend: bool = True) -> Any:
        return mx.nd.array(np.argsort(x.asnumpy() * (1 if is_ascend else -1), kind="stable"), x.context)

    given = SimpleNamespace(uniform=lambda low, high, shape: mx.nd.array(drawn(*shape)))
    net.sampler.hybridize(False)
    calls.clear()
    last = SimpleNamespace(choice=lambda places, size, replace: places[len(places) - size :])
    rpn_target.np = SimpleNamespace(**{**vars(np), "random": last})
    try:
        with _with(net.sampler, random=lambda _: given, argsort=lambda _: in_order):
            yield
    finally:
        rpn_target.np = np


# MXNet's functions that cast to float32, make it, or have no other kernel
_WIDE: Mapping[str, Any] = {
    "amp_multicast": lambda operators: lambda *arrays, **_: arrays,
    "cast": lambda operators: lambda x, dtype: operators.cast(x, "float64"),
    "arange": lambda operators: partial(operators.arange, dtype="float64"),
    "argmax": lambda operators: lambda x, **named: operators.cast(operators.argmax(x, **named), "float64"),
}


def _instance_norm(operators: Any) -> Any:
    def normalized(x: Any, gamma: Any, beta: Any, eps: float, **_: Any) -> Any:
        rows = x.reshape((0, 0, -1))
        apart = operators.broadcast_sub(rows, rows.mean(axis=2, keepdims=True))
        scale = operators.rsqrt(apart.square().mean(axis=2, keepdims=True) + eps)
        found = operators.broadcast_mul(apart, operators.broadcast_mul(scale, gamma.reshape((1, -1, 1))))
        return operators.broadcast_add(found, beta.reshape((1, -1, 1))).reshape_like(x)

    return normalized


@contextmanager
def in_double_precision(net: Any) -> Iterator[None]:
    """Compute in double precision what gluoncv's code casts to float32, and InstanceNorm, which has no other kernel."""
    norms = (block for _, block in blocks_by_path(net) if isinstance(block, nn.InstanceNorm))
    changed: List[Tuple[Any, Mapping[str, Any]]] = [(block, {"InstanceNorm": _instance_norm}) for block in norms]
    if hasattr(net, "yolo_outputs"):
        changed.append((net._loss, _WIDE))
    if _has_regions(net):
        proposer = net.rpn.region_proposer
        changed += [(block, _WIDE) for block in (net, net.sampler, proposer._box_decoder, proposer._clipper)]
        changed.append((net.target_generator._box_encoder, {**_WIDE, **_WITHOUT_ENCODE}))
    if changed:
        net.hybridize(False)
    with ExitStack() as stack:
        for block, operators in changed:
            stack.enter_context(_with(block, **operators))
        yield
