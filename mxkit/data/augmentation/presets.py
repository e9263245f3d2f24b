"""Published augmentations by name, and their constants."""

from math import ceil
from typing import Any, Callable, Dict, List, Tuple

# Mean and standard deviation of ImageNet's training images, in RGB from 0 to 1:
# https://github.com/facebookarchive/fb.resnet.torch, gluoncv.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
# Those of gluoncv's train_cifar10.py. Its std is the mean of each image's own; over all pixels it would be
# (0.2470, 0.2435, 0.2616).
CIFAR10_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR10_STD = (0.2023, 0.1994, 0.2010)

_IMAGENET_TENSOR = ["to_tensor", ("normalize", {"mean": IMAGENET_MEAN, "std": IMAGENET_STD})]
_CIFAR_TENSOR = ["to_tensor", ("normalize", {"mean": CIFAR10_MEAN, "std": CIFAR10_STD})]


def imagenet_train(size: int) -> List[Any]:
    """gluoncv's `train_imagenet.py`, after "Bag of Tricks for Image Classification", arXiv:1812.01187."""
    return [
        ("resized_crop", {"size": size}),
        "flip",
        ("colour_jitter", {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4}),
        ("lighting", {"std": 0.1}),
        *_IMAGENET_TENSOR,
    ]


def imagenet_eval(size: int) -> List[Any]:
    """Cut out the middle 7/8 of the shorter side: gluoncv's `transform_eval` with 256 and 224."""
    return [("resize", {"size": ceil(size / 0.875)}), ("center_crop", {"size": size}), *_IMAGENET_TENSOR]


def cifar_train(size: int) -> List[Any]:
    """gluoncv's `train_cifar10.py`, after "Deep Residual Learning", arXiv:1512.03385: 4 pixels of padding, flips."""
    return [("crop", {"size": size, "padding": 4}), "flip", *_CIFAR_TENSOR]


def cifar_eval(size: int) -> List[Any]:
    """Keep images of `size` as they are."""
    return [("center_crop", {"size": size}), *_CIFAR_TENSOR]


# For each name its steps and its published size.
PRESETS: Dict[str, Tuple[Callable[[int], List[Any]], int]] = {
    "imagenet_train": (imagenet_train, 224),
    "imagenet_eval": (imagenet_eval, 224),
    "cifar_train": (cifar_train, 32),
    "cifar_eval": (cifar_eval, 32),
}
