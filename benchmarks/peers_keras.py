"""Keras's side of `peers`, run by the interpreter of .venv/peers: mxkit's nets on JAX, images as N, H, W, C."""

from functools import lru_cache
import os
import time
from typing import Any, Dict, List, Tuple

os.environ["KERAS_BACKEND"] = "jax"

import jax  # noqa: E402
import keras  # noqa: E402
from keras import layers  # noqa: E402
import numpy as np  # noqa: E402


def versions() -> Dict[str, str]:
    return {"Keras": keras.__version__, "JAX": jax.__version__}


def residual(x: Any, channels: int) -> Any:
    """Two convolutions and a way past them, as `vision.BasicBlockV1`."""
    halves = x.shape[-1] != channels
    past = x
    x = convolution(x, channels, 3, 2 if halves else 1)
    x = convolution(layers.ReLU()(x), channels, 3, 1)
    if halves:
        past = convolution(past, channels, 1, 2)
    return layers.ReLU()(layers.Add()([x, past]))


def convolution(x: Any, channels: int, size: int, stride: int) -> Any:
    """One that is normalized; pads as MXNet does, on both sides alike."""
    if size > 1:
        x = layers.ZeroPadding2D(size // 2)(x)
    x = layers.Conv2D(channels, size, stride, use_bias=False)(x)
    return layers.BatchNormalization(momentum=0.9, epsilon=1e-5)(x)


def network(name: str, shape: List[int]) -> Any:
    """The layers of `mxkit.models.get_model(name)` for images of (C, H, W)."""
    image = x = keras.Input((*shape[1:], shape[0]))
    if name == "lenet":
        for channels in (20, 50):
            x = layers.MaxPooling2D(2)(layers.Conv2D(channels, 5, activation="relu")(x))
        x = layers.Dense(128, activation="relu")(layers.Flatten()(x))
    elif name == "resnet18":
        x = layers.ReLU()(convolution(x, 64, 7, 2))
        # zeros serve for the edge: what ReLU gives is at least 0
        x = layers.MaxPooling2D(3, 2)(layers.ZeroPadding2D(1)(x))
        for channels in (64, 128, 256, 512):
            x = residual(residual(x, channels), channels)
        x = layers.GlobalAveragePooling2D()(x)
    else:
        x = layers.Flatten()(x)
        if name == "mlp":
            x = layers.Dense(256, activation="relu")(x)
    return keras.Model(image, layers.Dense(10)(x))


@lru_cache(maxsize=None)
def built(name: str, batch: int, shape: Tuple[int, ...], updates: int) -> Tuple[Any, Any, Any]:
    """A compiled net and its samples, kept from round to round."""
    keras.utils.set_random_seed(0)
    net = network(name, list(shape))
    net.compile(keras.optimizers.SGD(0.01, momentum=0.9), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    rng = np.random.default_rng(0)
    x = rng.random((batch * updates, *shape[1:], shape[0]), dtype=np.float32)
    return net, x, rng.integers(0, 10, batch * updates)


def train(name: str, batch: int, shape: List[int], updates: int) -> Dict[str, float]:
    """An epoch of `Model.fit` with neither bar nor metric: its seconds, and the number of trainable parameters."""
    net, x, y = built(name, batch, tuple(shape), updates)
    begun = time.perf_counter()
    net.fit(x, y, batch_size=batch, epochs=1, shuffle=False, verbose=0)
    passed = time.perf_counter() - begun
    return {"seconds": passed, "parameters": sum(int(np.prod(weight.shape)) for weight in net.trainable_weights)}
