import mxnet as mx
from mxnet import autograd, contrib, gluon, nd
from mxnet.gluon import nn
import numpy as np

mx.random.seed(0)
np.random.seed(0)


class TinySSD(nn.Block):
    def __init__(self, num_classes, **kwargs):
        super(TinySSD, self).__init__(**kwargs)
        self.body = nn.Sequential()
        for channels in (8, 16):
            self.body.add(nn.Conv2D(channels, 3, padding=1), nn.BatchNorm(), nn.Activation('relu'), nn.MaxPool2D(2))
        self.cls, self.box = nn.Conv2D(4 * (num_classes + 1), 3, padding=1), nn.Conv2D(4 * 4, 3, padding=1)
        self.num_classes = num_classes

    def forward(self, X):
        Y = self.body(X)
        anchors = contrib.nd.MultiBoxPrior(Y, sizes=[0.4, 0.6], ratios=[1, 2, 0.5])
        cls = self.cls(Y).transpose((0, 2, 3, 1)).flatten().reshape((0, -1, self.num_classes + 1))
        return anchors, cls, self.box(Y).transpose((0, 2, 3, 1)).flatten()


images, labels = np.random.uniform(0, 0.1, (8, 3, 16, 16)), np.zeros((8, 1, 5), dtype=np.float32)
for i in range(8):
    left, top = np.random.randint(0, 8, size=2)
    images[i, :, top:top + 8, left:left + 8] += 0.8
    labels[i, 0] = [0, left / 16., top / 16., (left + 8) / 16., (top + 8) / 16.]
X, Y = nd.array(images), nd.array(labels)
net = TinySSD(num_classes=1)
net.initialize(init=mx.init.Xavier())
trainer = gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': 0.1, 'wd': 5e-4})
cls_loss, bbox_loss, history = gluon.loss.SoftmaxCrossEntropyLoss(), gluon.loss.L1Loss(), []
for epoch in range(30):
    with autograd.record():
        anchors, cls_preds, bbox_preds = net(X)
        bbox_labels, bbox_masks, cls_labels = contrib.nd.MultiBoxTarget(anchors, Y, cls_preds.transpose((0, 2, 1)))
        l = cls_loss(cls_preds, cls_labels) + bbox_loss(bbox_preds * bbox_masks, bbox_labels * bbox_masks)
    l.backward()
    trainer.step(8)
    history.append(l.mean().asscalar())
anchors, cls_preds, bbox_preds = net(X)
output = contrib.nd.MultiBoxDetection(cls_preds.softmax().transpose((0, 2, 1)), bbox_preds, anchors)
idx = [i for i, row in enumerate(output[0]) if row[0].asscalar() != -1]
print('%.3f -> %.3f' % (history[0], history[-1]), output.shape, len(idx) > 0)
assert history[-1] < history[0]
