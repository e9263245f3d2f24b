"""The losses of detectors as torch code: targets as gluoncv's generators make them, and the loss of each image."""

from contextlib import contextmanager, nullcontext
from typing import Any, ContextManager, Dict, Iterator, List, Tuple

from mxnet import autograd

SSD = """scores, offsets, anchors = output
boxes, images = label[:, :, :4], torch.arange(len(label), device=label.device)
centre, side = anchors[0].float().split(2, 1)
corners = torch.cat([centre - side / 2, centre + side / 2], 1)[:, None]
low = torch.maximum(corners[..., :2], boxes[:, None, :, :2])
high = torch.minimum(corners[..., 2:], boxes[:, None, :, 2:])
common = (high - low).clamp(min=0).prod(3)
union = (corners[..., 2:] - corners[..., :2]).prod(2) + (boxes[..., 2:] - boxes[..., :2]).prod(2)[:, None] - common
overlap = torch.where(common > 0, common / union, 0.0)  # (B, N, M)
best, nearest = overlap.max(2)
match, left = torch.full_like(nearest, -1), overlap.clone()
for _ in range(overlap.shape[2]):  # the pair with the largest overlap, then that of those that are left
    largest, place = left.flatten(1).max(1)
    row, column = place // overlap.shape[2], place % overlap.shape[2]
    match[images, row] = torch.where(largest > 0, column, match[images, row])
    left[images, row], left[images, :, column] = -1.0, -1.0
taken = (best >= overlap.max(1).values.gather(1, nearest)) | (best >= $iou)
match = torch.where((match < 0) & taken, nearest, match)
index = match.clamp(min=0)
classes = torch.where(match >= 0, label[:, :, 4].gather(1, index) + 1, 0.0).long()
positive = (classes > 0)[:, :, None]
own = boxes.gather(1, index[:, :, None].expand(-1, -1, 4))
size = torch.where(positive, own[..., 2:] - own[..., :2], side)
targets = torch.cat([((own[..., :2] + own[..., 2:]) / 2 - centre) / side / 0.1, (size / side).log() / 0.2], 2)
distance = F.smooth_l1_loss(offsets, torch.where(positive, targets, offsets.detach()), reduction="none")
entropy = F.cross_entropy(scores.transpose(1, 2), classes, reduction="none")
rank = torch.where(classes > 0, 0.0, -entropy.detach()).argsort(1).argsort(1)
hard = rank < positive.sum(1) * $negatives
return (entropy * ((classes > 0) | hard)).sum(1) + $box_weight * distance.sum((1, 2))"""

CENTERNET = """heat, sizes, offsets = output
valid, corners = label[:, :, 4] >= 0, label[:, :, :4].clamp(min=0) / $scale
size, centre = corners[..., 2:] - corners[..., :2], (corners[..., :2] + corners[..., 2:]) / 2
rows, columns = heat.shape[2:]
x, y = centre[..., 0].floor().clamp(max=columns - 1).long(), centre[..., 1].floor().clamp(max=rows - 1).long()
width, height = size.ceil().unbind(2)
total, area, share = width + height, width * height, 0.7  # the boxes keep this overlap within the radius
radii = [
    (total + (total**2 - 4 * area * (1 - share) / (1 + share)).sqrt()) / 2,
    (2 * total + (4 * total**2 - 16 * (1 - share) * area).sqrt()) / 2,
    (-2 * share * total + (4 * (share * total) ** 2 - 16 * share * (share - 1) * area).sqrt()) / 2,
]
radius = torch.stack(radii).amin(0).floor()[:, :, None]
bells = []
for cell, cells in ((x, columns), (y, rows)):
    away = torch.arange(cells, device=label.device) - cell[:, :, None]
    bells.append((-(away**2) / (2 * ((2 * radius + 1) / 6) ** 2)).exp() * (away.abs() <= radius))
target = torch.zeros_like(heat, dtype=torch.float32)
hot = F.one_hot(label[:, :, 4].long().clamp(min=0), heat.shape[1]) * valid[:, :, None]
for number in range(label.shape[1]):
    bell = bells[1][:, number, :, None] * bells[0][:, number, None]
    target = torch.maximum(target, hot[:, number, :, None, None] * bell[:, None])
found = heat.log() * (1 - heat) ** 2 * (target == 1)
empty = (1 - heat).log() * heat**2 * (1 - target) ** 4 * (target < 1)
loss = -(found + empty).sum((1, 2, 3))
image = torch.arange(len(label), device=label.device)[:, None].expand_as(x)
place = centre - torch.stack([x, y], 2)
for part, wanted, weight in ((sizes, size, $size_weight), (offsets, place, $offset_weight)):
    picked = part.permute(0, 2, 3, 1)[image, y, x]
    loss = loss + weight / 2 * ((picked - wanted).abs() * valid[:, :, None]).sum((1, 2))
return loss"""

YOLO3 = """found, centres, scales, objectness, classes = output
boxes, valid, (height, width) = label[:, :, :4], label[:, :, 4] >= 0, $size
# rows and columns of a map, and its anchors
layers = [
$layers]
low = torch.maximum(found[:, :, None, :2], boxes[:, None, :, :2])
high = torch.minimum(found[:, :, None, 2:], boxes[:, None, :, 2:])
common = (high - low).clamp(min=0).prod(3)
areas = [(one[..., 2:] - one[..., :2]).prod(2) for one in (found, boxes)]
overlap = common / (areas[0][:, :, None] + areas[1][:, None] - common + 1e-15)
ignored = overlap.amax(2, keepdim=True) > $ignored
size, centre = boxes[..., 2:] - boxes[..., :2], (boxes[..., :2] + boxes[..., 2:]) / 2
anchors = label.new_tensor([anchor for _, _, own in layers for anchor in own])
common = torch.minimum(size[:, :, None], anchors).prod(3)
best = (common / (size.prod(2)[:, :, None] + anchors.prod(1) - common)).argmax(2)
table: list[tuple] = []
begin = 0
for rows, columns, own in layers:
    table += [(begin, len(own), number, rows, columns) for number in range(len(own))]
    begin += rows * columns * len(own)
first, count, number, rows, columns = label.new_tensor(table)[best].unbind(2)
x, y = centre[..., 0] / width * columns, centre[..., 1] / height * rows
index = (first + (y.floor() * columns + x.floor()) * count + number).long()
parts = [torch.ones_like(x), x - x.floor(), y - y.floor(), *(size.clamp(min=1) / anchors[best]).log().unbind(2)]
values = torch.stack([*parts, 2 - size.prod(2) / height / width], 2)
values = torch.cat([values, F.one_hot(label[:, :, 4].long().clamp(min=0), classes.shape[2])], 2)
target = torch.zeros((*classes.shape[:2], values.shape[2]), device=label.device)
for object in range(label.shape[1]):  # of two at one place the later one wins
    (image,) = valid[:, object].nonzero(as_tuple=True)
    target[image, index[image, object]] = values[image, object]
positive, weight = target[..., :1], target[..., 5:6]
loss = ((scales - target[..., 3:5]).abs() * weight).sum((1, 2))
for part, wanted, share in (
    (objectness, positive, positive + (1 - positive) * ~ignored),
    (centres, target[..., 1:3], weight),
    (classes, target[..., 6:], positive),
):
    entropy = F.binary_cross_entropy_with_logits(part, wanted.to(part.dtype), reduction="none")
    loss = loss + (entropy * share).sum((1, 2))
return loss"""

LOSSES = {"centernet": CENTERNET, "ssd": SSD, "yolo3": YOLO3}

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
