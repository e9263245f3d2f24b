import mxnet as mx
from mxnet import gluon
from mxnet.gluon.data.vision import transforms
import numpy as np

mx.random.seed(0)


class Squares(gluon.data.Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, idx):
        image = np.full((9, 9, 3), idx, dtype=np.uint8)
        return mx.nd.array(image, dtype='uint8'), float(idx % 3)


if __name__ == '__main__':
    transform = transforms.Compose([transforms.Resize(8), transforms.CenterCrop(6), transforms.RandomFlipLeftRight(),
                                    transforms.ToTensor(), transforms.Normalize([0.5] * 3, [0.2] * 3)])
    dataset = Squares().transform_first(transform)
    for threads in (False, True):
        loader = gluon.data.DataLoader(dataset, batch_size=5, last_batch='rollover', num_workers=2, thread_pool=threads)
        for epoch in range(2):
            total = sum(label.sum().asscalar() for data, label in loader if data.shape == (5, 3, 6, 6))
        print(threads, len(loader), total)
    sampler = gluon.data.BatchSampler(gluon.data.RandomSampler(24), 6, 'discard')
    assert len(list(gluon.data.DataLoader(Squares(), batch_sampler=sampler))) == 4
