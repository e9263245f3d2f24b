"""Splits a data set as its searches do, and reads it in batches by processes.

像它的搜索那样划分一个数据集，并用多个进程成批读取。
"""

from autogluon.mxnet.utils import DataLoader, SampledDataset, get_split_samplers
import mxnet as mx
from mxnet import gluon
import numpy as np

data = gluon.data.ArrayDataset(np.arange(20, dtype="float32"), np.arange(20) % 2)
train, valid = get_split_samplers(data, split_ratio=0.8)
print(len(train), len(valid), len(SampledDataset(data, train)))
for x, y in DataLoader(data, batch_size=4, sampler=train, num_workers=2):
    assert mx.nd.NDArray is type(x)
    assert x.shape == y.shape
print(x.shape)
