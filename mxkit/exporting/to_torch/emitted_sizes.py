"""Functions of a converted net that depend on the sizes of images at run time; as those of `emitted_helpers`."""

from typing import Dict


def by_name(text: str) -> Dict[str, str]:
    """Divide source text into its functions, by their names."""
    sources = text.strip().split("\n\n\n")
    return {source[len("def ") : source.index("(")]: f"{source}\n" for source in sources}


_TEXT = '''
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
'''

OF_SIZES = by_name(_TEXT)
