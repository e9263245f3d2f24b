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


def not_written(operator: str, *inputs: torch.Tensor | None) -> torch.Tensor:
    """Stand where MXNet's net computes an operator without an equivalent: replace the call."""
    raise NotImplementedError(operator)


def cut_to(x: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """Cut all dimensions after the second to sizes, at the front half a pixel more than at the end."""
    for dim, size in enumerate(sizes, start=2):
        x = x.narrow(dim, (x.shape[dim] - size + 1) // 2, size)
    return x


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


def box_overlaps(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the shared area of each box (left, top, right, bottom) of one array and of the other, of their union."""
    areas = [(one[:, 2:] - one[:, :2]).clamp(min=0).prod(dim=1) for one in (x, y)]
    low = torch.maximum(x[:, None, :2], y[:, :2])
    shared = (torch.minimum(x[:, None, 2:], y[:, 2:]) - low).clamp(min=0).prod(dim=2)
    union = areas[0][:, None] + areas[1] - shared
    return torch.where(union > 0, shared / union, 0.0)


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


def roi_weights(
    begin: torch.Tensor, length: torch.Tensor, cells: int, size: int, samples: int
) -> torch.Tensor:
    """Return weights (boxes, cells, size): how much of each row, or column, is in the mean of a cell's samples."""
    width = length / cells
    counts = torch.full_like(width, samples) if samples > 0 else width.ceil()
    counts = counts.clamp(min=1)
    number = torch.arange(int(counts.max()), device=begin.device)
    cell = torch.arange(cells, device=begin.device).unsqueeze(1)
    begin, width, counts = (part[:, None, None] for part in (begin, width, counts))
    place = begin + cell * width + (number + 0.5) * width / counts
    is_sample = (number < counts) & (place >= -1) & (place <= size)
    place = place.clamp(0, size - 1).unsqueeze(3)
    share = 1 - (place - torch.arange(size, device=begin.device)).abs()
    return (share.clamp(min=0) * is_sample.unsqueeze(3)).sum(dim=2) / counts


def roi_align(
    x: torch.Tensor,
    boxes: torch.Tensor,
    pooled: Sequence[int],
    scale: float,
    samples: int = -1,
    aligned: bool = False,
    by_position: bool = False,
) -> torch.Tensor:
    """Return the mean of bilinear samples in each cell of each box (image, left, top, right, bottom)."""
    boxes = boxes.detach()
    corners = boxes[:, 1:] * scale - (0.5 if aligned else 0)
    sizes = corners[:, 2:] - corners[:, :2]
    if not aligned:
        sizes = sizes.clamp(min=1)
    across, down = (
        roi_weights(corners[:, n], sizes[:, n], pooled[1 - n], x.shape[3 - n], samples)
        for n in (0, 1)
    )
    is_own = boxes[:, :1].long() == torch.arange(x.shape[0], device=x.device)
    down = down.unsqueeze(2) * is_own[:, None, :, None]
    y = torch.einsum("rinh,nchw->rciw", down, x)
    y = torch.einsum("rciw,rjw->rcij", y, across)
    if by_position:
        cells = pooled[0] * pooled[1]
        y = y.reshape(y.shape[0], -1, cells, cells).diagonal(dim1=2, dim2=3)
        y = y.reshape(y.shape[0], -1, *pooled)
    return y
