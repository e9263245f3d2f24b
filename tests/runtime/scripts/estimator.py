import logging
import os
import tempfile

import mxnet as mx
from mxnet import gluon
from mxnet.gluon import nn
from mxnet.gluon.contrib.estimator import estimator
from mxnet.gluon.contrib.estimator.event_handler import CheckpointHandler, EarlyStoppingHandler, EpochEnd, TrainBegin
import numpy as np

mx.random.seed(7)
np.random.seed(7)


class LossRecordHandler(TrainBegin, EpochEnd):
    def train_begin(self, estimator, *args, **kwargs):
        self.losses = []

    def epoch_end(self, estimator, *args, **kwargs):
        self.losses.append(dict(m.get_name_value()[0] for m in estimator.train_metrics))


x = np.random.normal(size=(160, 6)).astype(np.float32)
y = x.argmax(axis=1).astype(np.float32)
train = gluon.data.DataLoader(gluon.data.ArrayDataset(x[:128], y[:128]), batch_size=16, shuffle=True)
val = gluon.data.DataLoader(gluon.data.ArrayDataset(x[128:], y[128:]), batch_size=16)
net = nn.HybridSequential()
net.add(nn.Dense(32, activation='relu'), nn.Dropout(0.1), nn.Dense(6))
net.initialize(init=mx.init.MSRAPrelu())
net.hybridize()
trainer = gluon.Trainer(net.collect_params(), 'adam', {'learning_rate': 0.02})
acc = mx.metric.Accuracy()
est = estimator.Estimator(net=net, loss=gluon.loss.SoftmaxCrossEntropyLoss(), train_metrics=acc, trainer=trainer,
                          context=mx.cpu())
est.logger.setLevel(logging.WARNING)
folder, record = tempfile.mkdtemp(), LossRecordHandler()
stop = EarlyStoppingHandler(monitor=acc, patience=3, mode='max')
est.fit(train_data=train, val_data=val, epochs=4,
        event_handlers=[record, stop, CheckpointHandler(folder, model_prefix='net', monitor=acc, save_best=True)])
print(record.losses, sorted(os.listdir(folder)))
assert acc.get()[1] > 0.6 and len(record.losses) == 4 and 'net-best.params' in os.listdir(folder)
