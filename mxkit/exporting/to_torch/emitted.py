# fmt: off
"""Functions of PyTorch for operators that are more than one expression; a converted file holds those that it calls.

`operators.py` reads this file as text, so mxkit needs no torch. Lines are as long as in a converted file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    import torch.nn.functional as F  # noqa: N812 - as everybody calls it


def window_ends(
    sizes: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
) -> list[int]:
    """Return the padding behind each dimension that the last of all windows needs."""
    return [
        -(-(size + 2 * pad - wide) // step) * step + wide - size - pad
        for size, wide, step, pad in zip(sizes, kernel, stride, padding)
    ]


def full_max_pool(
    x: torch.Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
) -> torch.Tensor:
    """Pool with all windows that cover the padded input; `ceil_mode` drops those that start behind the input."""
    ends = window_ends(x.shape[2:], kernel, stride, padding)
    widths = [width for pair in zip(padding[::-1], ends[::-1]) for width in pair]
    pool = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[len(kernel) - 1]
    padded = F.pad(x, widths, value=torch.finfo(x.dtype).min)
    return pool(padded, tuple(kernel), tuple(stride))


def full_avg_pool(
    x: torch.Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    count_padding: bool = True,
) -> torch.Tensor:
    """Average all windows that cover the padded input; `ceil_mode` drops those that start behind the input."""
    ends = window_ends(x.shape[2:], kernel, stride, padding)
    widths = [width for pair in zip(padding[::-1], ends[::-1]) for width in pair]
    pool = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[len(kernel) - 1]
    y = pool(F.pad(x, widths), tuple(kernel), tuple(stride))
    for dim, (size, wide, step, pad) in enumerate(
        zip(x.shape[2:], kernel, stride, padding), start=2
    ):
        first = torch.arange(y.shape[dim], device=x.device) * step - pad
        last = (first + wide).clamp(max=size + pad * count_padding)
        counted = last - (first if count_padding else first.clamp(min=0))
        # a window without numbers has the average 0
        y = y * wide / counted.clamp(min=1).reshape(-1, *[1] * (x.dim() - 1 - dim))
    return y


def centred(x: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Return the middle of an image."""
    top, left = (x.shape[2] - height) // 2, (x.shape[3] - width) // 2
    return x[:, :, top : top + height, left : left + width]


def cut_to(x: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """Cut all dimensions after the second to sizes, at the front half a pixel more than at the end."""
    for dim, size in enumerate(sizes, start=2):
        x = x.narrow(dim, (x.shape[dim] - size + 1) // 2, size)
    return x


def gamma_function(x: torch.Tensor) -> torch.Tensor:
    """Return the gamma function; torch has only the logarithm of its magnitude."""
    is_negative = (x < 0) & (x.floor() % 2 != 0)
    return torch.lgamma(x).exp() * torch.where(is_negative, -1.0, 1.0)


def softmax_to_length(x: torch.Tensor, lengths: torch.Tensor, dim: int) -> torch.Tensor:
    """Return the softmax over the first elements of each row; zeros stand after them."""
    dim = dim % x.dim()
    shape = [1] * x.dim()
    shape[dim] = -1
    steps = torch.arange(x.shape[dim], device=x.device).reshape(shape)
    is_after = steps >= lengths.unsqueeze(dim)
    y = F.softmax(x.masked_fill(is_after, float("-inf")), dim=dim)
    return y.masked_fill(is_after, 0)


def mask_after(
    x: torch.Tensor, lengths: torch.Tensor, value: float = 0, dim: int = 0
) -> torch.Tensor:
    """Replace the steps after the end of each sequence; time is dimension `dim`, 0 or 1, the batch the other."""
    ends, steps = lengths.long(), torch.arange(x.shape[dim], device=x.device)
    is_after = steps.unsqueeze(1) >= ends if dim == 0 else steps >= ends.unsqueeze(1)
    return x.masked_fill(is_after.reshape(*is_after.shape, *[1] * (x.dim() - 2)), value)


def last_steps(x: torch.Tensor, lengths: torch.Tensor, dim: int = 0) -> torch.Tensor:
    """Return the last step of each sequence; time is dimension `dim`, 0 or 1, the batch the other."""
    samples, last = torch.arange(len(lengths), device=x.device), lengths.long() - 1
    return x[last, samples] if dim == 0 else x[samples, last]


def reverse_steps(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Reverse each sequence up to its length; what follows stays. Time is dimension 0, the batch dimension 1."""
    steps = torch.arange(x.shape[0], device=x.device).unsqueeze(1)
    lengths = lengths.long()
    turned = torch.where(steps < lengths, lengths - 1 - steps, steps)
    return x[turned, torch.arange(x.shape[1], device=x.device)]


def part_of_heads(
    x: torch.Tensor, heads: int, parts: int = 1, part: int = 0
) -> torch.Tensor:
    """Return one of the parts that lie side by side in each head, as (batch * heads, steps, width)."""
    steps, batch, width = x.shape
    joined = x.reshape(steps, batch * heads, parts, width // heads // parts)
    return joined[:, :, part].transpose(0, 1)


def attention_scores(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Return scaled scores (batch * heads, queries, keys)."""
    return torch.matmul(query / query.shape[-1] ** 0.5, key.mT)


def attention_values(
    attention: torch.Tensor, value: torch.Tensor, heads: int
) -> torch.Tensor:
    """Return the attended values (queries, batch, heads * width)."""
    y = (attention @ value).transpose(0, 1)
    return y.reshape(y.shape[0], -1, heads * y.shape[2])


def depth_to_space(x: torch.Tensor, block: int) -> torch.Tensor:
    """Move channels into blocks of pixels; the block stands before the channel, unlike in F.pixel_shuffle."""
    batch, channels, height, width = x.shape
    parts = x.reshape(batch, block, block, channels // block**2, height, width)
    moved = parts.permute(0, 3, 4, 1, 5, 2)
    return moved.reshape(batch, -1, height * block, width * block)


def space_to_depth(x: torch.Tensor, block: int) -> torch.Tensor:
    """Move blocks of pixels into channels; the block stands before the channel, unlike in F.pixel_unshuffle."""
    batch, channels, height, width = x.shape
    rows, columns = height // block, width // block
    parts = x.reshape(batch, channels, rows, block, columns, block)
    return parts.permute(0, 3, 5, 1, 2, 4).reshape(batch, -1, rows, columns)


def decode_boxes(
    x: torch.Tensor,
    anchors: torch.Tensor,
    scales: Sequence[float] = (1, 1, 1, 1),
    limit: float = 0,
    corners: bool = False,
) -> torch.Tensor:
    """Return boxes (left, top, right, bottom) of offsets to anchors, which are centres and sizes, or corners."""
    if corners:
        size = anchors[..., 2:] - anchors[..., :2]
        centre = anchors[..., :2] + 0.5 * size
    else:
        centre, size = anchors[..., :2], anchors[..., 2:]
    offsets = x * torch.tensor(scales, dtype=x.dtype, device=x.device)
    moved = offsets[..., :2] * size + centre
    growth = offsets[..., 2:].clamp(max=limit) if limit > 0 else offsets[..., 2:]
    half = 0.5 * growth.exp() * size
    return torch.cat([moved - half, moved + half], dim=-1)


def kept_boxes(
    boxes: torch.Tensor,
    is_valid: torch.Tensor,
    overlap: float,
    labels: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return which boxes (batch, boxes, 4), the best first, overlap no better one of the same label."""
    first, last = boxes[..., :2], boxes[..., 2:]
    area = (last - first).clamp(min=0).prod(dim=2)
    is_kept = is_valid.clone()
    for number in range(int(is_valid.sum(dim=1).max())):
        this = slice(number, number + 1)
        size = torch.minimum(last, last[:, this]) - torch.maximum(first, first[:, this])
        shared = size.clamp(min=0).prod(dim=2)
        is_close = shared / (area + area[:, this] - shared) > overlap
        if labels is not None:
            is_close = is_close & (labels == labels[:, this])
        is_close[:, : number + 1] = False
        is_kept = is_kept & ~(is_close & is_kept[:, this])
    return is_kept


def box_nms(
    x: torch.Tensor,
    overlap: float = 0.5,
    threshold: float = 0,
    topk: int = -1,
    coordinates: int = 2,
    score: int = 1,
    label: int = -1,
    background: int = -1,
    across_labels: bool = False,
) -> torch.Tensor:
    """Sort boxes (..., boxes, values) by score, keep those that overlap no better one; rows of -1 follow."""
    rows = x.reshape(-1, *x.shape[-2:])
    scores = rows[..., score]
    is_valid = scores > threshold
    if label >= 0:
        is_valid = is_valid & (rows[..., label] != background)
    valid_scores = scores.masked_fill(~is_valid, float("-inf"))
    order = valid_scores.argsort(dim=1, descending=True, stable=True)
    best = order[:, :topk] if topk > 0 else order
    sorted_rows = rows.gather(1, best.unsqueeze(2).expand(-1, -1, rows.shape[2]))
    boxes = sorted_rows[..., coordinates : coordinates + 4]
    labels = sorted_rows[..., label] if label >= 0 and not across_labels else None
    is_kept = kept_boxes(boxes, is_valid.gather(1, best), overlap, labels)
    front = (~is_kept).to(torch.uint8).argsort(dim=1, stable=True)
    kept = sorted_rows.masked_fill(~is_kept.unsqueeze(2), -1)
    kept = kept.gather(1, front.unsqueeze(2).expand_as(kept))
    padded = F.pad(kept, (0, 0, 0, rows.shape[1] - kept.shape[1]), value=-1)
    return padded.reshape(x.shape)


def detect_boxes(
    scores: torch.Tensor,
    offsets: torch.Tensor,
    anchors: torch.Tensor,
    threshold: float = 0.01,
    overlap: float = 0.5,
    variances: Sequence[float] = (0.1, 0.1, 0.2, 0.2),
    clip: bool = True,
    topk: int = -1,
    across_labels: bool = False,
) -> torch.Tensor:
    """Return rows (label, score, box) of the anchors, the best first; those that overlap a better one have label -1."""
    best, label = scores[:, 1:].max(dim=1)
    offsets = offsets.reshape(len(offsets), -1, 4)
    boxes = decode_boxes(offsets, anchors, variances, corners=True)
    boxes = boxes.clamp(0, 1) if clip else boxes
    heads = torch.stack([label.to(best.dtype), best], dim=2)
    rows = torch.cat([heads, boxes], dim=2)
    is_valid = best >= threshold
    valid_scores = best.masked_fill(~is_valid, float("-inf"))
    order = valid_scores.argsort(dim=1, descending=True, stable=True)
    if topk > 0:  # the others follow without a label, in the anchors' order
        others = (~is_valid).to(torch.uint8).argsort(dim=1, stable=True)[:, topk:]
        order = torch.cat([order[:, :topk], others], dim=1)
    rows = rows.gather(1, order.unsqueeze(2).expand_as(rows))
    is_valid = is_valid.gather(1, order)
    is_best = is_valid.clone()
    if topk > 0:
        is_best[:, topk:] = False
    labels = None if across_labels else rows[..., 0]
    is_kept = kept_boxes(rows[..., 2:], is_best, overlap, labels)
    labels = rows[..., :1].masked_fill(~is_kept.unsqueeze(2), -1)
    others = rows[..., 1:].masked_fill(~is_valid.unsqueeze(2), -1)
    return torch.cat([labels, others], dim=2)


def prior_boxes(
    x: torch.Tensor,
    sizes: Sequence[float],
    ratios: Sequence[float],
    steps: Sequence[float] | None = None,
    offsets: Sequence[float] = (0.5, 0.5),
    clip: bool = False,
) -> torch.Tensor:
    """Return anchors (1, height * width * shapes, 4) at each pixel of `x`: all sizes, then the other ratios."""
    height, width = x.shape[2:]
    step_y, step_x = steps or (1 / height, 1 / width)
    y = (torch.arange(height, device=x.device) + offsets[0]) * step_y
    x = (torch.arange(width, device=x.device) + offsets[1]) * step_x
    shapes = [(size * ratios[0] ** 0.5, size / ratios[0] ** 0.5) for size in sizes]
    shapes += [(sizes[0] * ratio**0.5, sizes[0] / ratio**0.5) for ratio in ratios[1:]]
    halves = [(wide * height / width / 2, high / 2) for wide, high in shapes]
    half = torch.tensor(halves, device=x.device)
    grid_y, grid_x = torch.meshgrid(y, x, indexing="ij")
    centres = torch.stack([grid_x, grid_y], dim=-1).reshape(-1, 1, 2)
    boxes = torch.cat([centres - half, centres + half], dim=-1).reshape(1, -1, 4)
    return boxes.clamp(0, 1) if clip else boxes


def roi_align(
    x: torch.Tensor,
    boxes: torch.Tensor,
    pooled: Sequence[int],
    scale: float,
    samples: int,
    aligned: bool = False,
) -> torch.Tensor:
    """Return the mean of samples^2 bilinear samples in each cell of each box (image, left, top, right, bottom)."""
    shift = 0.5 if aligned else 0.0
    left, top, right, bottom = (boxes[:, 1:] * scale - shift).unbind(1)
    width, height = right - left, bottom - top
    if not aligned:
        width, height = width.clamp(min=1), height.clamp(min=1)

    def points(start: torch.Tensor, length: torch.Tensor, cells: int) -> torch.Tensor:
        count = cells * samples
        parts = (torch.arange(count, device=x.device) + 0.5) / count
        return start.unsqueeze(1) + parts * length.unsqueeze(1)

    y, x_ = points(top, height, pooled[0]), points(left, width, pooled[1])
    rows, columns = x.shape[2:]
    has_row, has_column = (y >= -1) & (y <= rows), (x_ >= -1) & (x_ <= columns)
    is_inside = has_row.unsqueeze(2) & has_column.unsqueeze(1)
    y, x_ = y.clamp(0, rows - 1), x_.clamp(0, columns - 1)
    y0, x0 = y.floor().long(), x_.floor().long()
    y1, x1 = (y0 + 1).clamp(max=rows - 1), (x0 + 1).clamp(max=columns - 1)
    down, across = (y - y0).unsqueeze(2), (x_ - x0).unsqueeze(1)
    image = boxes[:, 0].long()[:, None, None]

    def at(row: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
        return x[image, :, row.unsqueeze(2), column.unsqueeze(1)].permute(3, 0, 1, 2)

    upper = at(y0, x0) * (1 - across) + at(y0, x1) * across
    lower = at(y1, x0) * (1 - across) + at(y1, x1) * across
    values = (upper * (1 - down) + lower * down) * is_inside
    return F.avg_pool2d(values.transpose(0, 1), samples)
