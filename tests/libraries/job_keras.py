"""Trains a model of convolutions and one of an LSTM on the backend MXNet, and copies the first by its JSON.

用 MXNet 后端训练一个卷积模型和一个 LSTM 模型，并用 JSON 复制前者。
"""

import os

os.environ["KERAS_BACKEND"] = "mxnet"

from keras.layers import LSTM, Conv2D, Dense, Flatten
from keras.models import Sequential, model_from_json
import numpy as np

rng = np.random.RandomState(0)
images, labels = rng.rand(32, 8, 8, 3).astype("float32"), np.eye(2)[np.arange(32) % 2]
model = Sequential([Conv2D(4, 3, activation="relu", input_shape=(8, 8, 3)), Flatten(), Dense(2, activation="softmax")])
model.compile(optimizer="adam", loss="categorical_crossentropy", metrics=["accuracy"])
model.fit(images, labels, batch_size=8, epochs=2, verbose=0)
copied = model_from_json(model.to_json())
copied.set_weights(model.get_weights())
copied.compile(optimizer="sgd", loss="categorical_crossentropy")
assert np.allclose(copied.predict(images), model.predict(images), atol=1e-6)
recurrent = Sequential([LSTM(4, input_shape=(5, 3), unroll=True), Dense(2, activation="softmax")])
recurrent.compile(optimizer="sgd", loss="categorical_crossentropy")
print(recurrent.fit(rng.rand(32, 5, 3), labels, epochs=1, verbose=0).history)
