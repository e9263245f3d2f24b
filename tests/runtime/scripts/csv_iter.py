import csv
import os
import tempfile

import mxnet as mx
import numpy as np

folder = tempfile.mkdtemp()
data_train, label_train = os.path.join(folder, 'data.csv'), os.path.join(folder, 'label.csv')
values = np.random.RandomState(0).uniform(size=(50, 6))
np.savetxt(data_train, values, delimiter=',', fmt='%.4f')
with open(label_train, 'w') as f:
    csv.writer(f).writerows([int(row.sum() > 3)] for row in values)
train_iter = mx.io.CSVIter(data_csv=data_train, data_shape=(2, 3), label_csv=label_train, label_shape=(1,), batch_size=8,
                           round_batch=False)
first = True
count = 0
for epoch in range(2):
    train_iter.reset()
    for batch in train_iter:
        data, label = batch.data[0].asnumpy(), batch.label[0].asnumpy()
        assert data.shape == (8, 2, 3) and label.shape == (8,), (data.shape, label.shape)
        if first:
            assert np.allclose(data.reshape((8, -1)), values[:8], atol=1e-3)
            first = False
        count += data.shape[0] - (batch.pad or 0)
print(count, train_iter.provide_data, train_iter.provide_label[0].dtype)
resized = mx.io.PrefetchingIter(mx.io.ResizeIter(train_iter, 3))
assert sum(1 for _ in resized) == 3
