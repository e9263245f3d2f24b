import os
import tempfile

import mxnet as mx
import numpy as np

np.random.seed(0)
prefix = os.path.join(tempfile.mkdtemp(), 'train')
record = mx.recordio.MXIndexedRecordIO(prefix + '.idx', prefix + '.rec', 'w')
for i in range(12):
    img = np.full((20, 24, 3), 20 * i, dtype=np.uint8)
    label = np.array([4, 5, i % 3], dtype=np.float32)
    record.write_idx(i, mx.recordio.pack_img(mx.recordio.IRHeader(0, label, i, 0), img, quality=95, img_fmt='.jpg'))
record.close()
record = mx.recordio.MXIndexedRecordIO(prefix + '.idx', prefix + '.rec', 'r')
header, img = mx.recordio.unpack_img(record.read_idx(4))
assert header.label[2] == 1 and img.shape == (20, 24, 3) and abs(int(img.mean()) - 80) < 3
print(mx.recordio.unpack(record.read_idx(11))[0].label)
data_iter = mx.io.ImageRecordIter(path_imgrec=prefix + '.rec', data_shape=(3, 16, 16), batch_size=4, label_width=3, rand_crop=True,
                                  rand_mirror=True, mean_r=10, preprocess_threads=1, seed=1)
for batch in data_iter:
    assert batch.data[0].shape == (4, 3, 16, 16)
augs = mx.image.CreateAugmenter(data_shape=(3, 16, 16), resize=18, rand_mirror=True, mean=True, std=True, brightness=0.1)
x = mx.nd.array(img, dtype='uint8')
for aug in augs:
    x = aug(x)
print(x.shape, len(augs), mx.image.imresize(mx.nd.array(img), 7, 5).shape)
dataset = mx.gluon.data.vision.ImageRecordDataset(prefix + '.rec')
assert dataset[2][0].shape == (20, 24, 3) and len(dataset) == 12
