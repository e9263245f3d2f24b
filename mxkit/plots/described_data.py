"""Picture of the first samples of each part of the data, which `mxkit.data.describe` kept."""

from pathlib import Path
from typing import Any, List, Optional, Union

from mxkit.data.describing import DataDescription, class_name
from mxkit.errors import DataError
from mxkit.plots.data_plots import show_images
import numpy as np


def show_data(
    description: DataDescription, *, mean: Any = None, std: Any = None, path: Optional[Union[str, Path]] = None
) -> Any:
    """Draw the first images of each part of the data with their labels, as `show_images` does.

    Args:
        description: Result of `mxkit.data.describe`.
        mean: Mean that was subtracted from the images. Without it and `std`, images with values below 0 are scaled from
            their minimum to their maximum.
        std: Standard deviation that they were then divided by.
        path: Where to save the picture, or None.

    Returns:
        The matplotlib Figure.

    Raises:
        DataError: The samples are not images.
    """
    images: List[Any] = []
    names: List[str] = []
    for part in description.parts.values():
        summary = part.inputs[0]
        if not summary.is_image:
            raise DataError(f"show_data: samples of {part.name} have shape {summary.shape}; expected images")
        low, high = summary.low or 0.0, summary.high or 0.0
        if mean is None and std is None:  # each part in its own unit
            black, white = (low, high) if low < 0 else (0.0, 255.0 if high > 1.01 else 1.0)
            images += [(one - black) / ((white - black) or 1) for one in part.images]
        else:
            images += part.images
        before = f"{part.name}: " if len(description.parts) > 1 else ""
        labels = part.names or [np.empty(0)] * len(part.images)
        names += [before + class_name(label, description.classes) for label in labels]
    return show_images(images, names, mean=mean, std=std, columns=8, path=path)
