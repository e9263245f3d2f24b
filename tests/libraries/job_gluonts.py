"""Trains a feed-forward net and DeepAR for an epoch each, and forecasts with both.

各用一个 epoch 训练前馈网络和 DeepAR，并用二者预测。
"""

from gluonts.dataset.common import ListDataset
from gluonts.mx import DeepAREstimator, SimpleFeedForwardEstimator, Trainer
import numpy as np

season = np.sin(np.arange(200) * 0.26).astype("float32")
data = ListDataset([{"start": "2026-01-01", "target": season + k} for k in range(4)], freq="H")
shared = {"prediction_length": 6, "trainer": Trainer(epochs=1, num_batches_per_epoch=4, hybridize=True)}
for estimator in (SimpleFeedForwardEstimator(**shared), DeepAREstimator(freq="H", num_cells=8, **shared)):
    predictor = estimator.train(data)
    forecasts = [forecast.mean for forecast in predictor.predict(data)]
    assert np.isfinite(forecasts).all()
    print(type(estimator).__name__, np.shape(forecasts))
