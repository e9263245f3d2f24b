"""Single shot multibox detection (d2l, section 13.7): anchors, targets and two losses."""

import book as d2l
import mxkit
from mxnet import autograd, gluon, init, np, npx
from mxnet.gluon import nn
import numpy

batch_size, lr, num_epochs, num_classes, size = 8, 0.2, 3, 1, 32
sizes = [[0.2, 0.272], [0.37, 0.447], [0.88, 0.961]]
ratios = [[1, 2, 0.5]] * 3
num_anchors = len(sizes[0]) + len(ratios[0]) - 1


def cls_predictor(num_anchors, num_classes):
    return nn.Conv2D(num_anchors * (num_classes + 1), kernel_size=3, padding=1)


def bbox_predictor(num_anchors):
    return nn.Conv2D(num_anchors * 4, kernel_size=3, padding=1)


def flatten_pred(pred):
    return npx.batch_flatten(pred.transpose(0, 2, 3, 1))


def concat_preds(preds):
    return np.concatenate([flatten_pred(p) for p in preds], axis=1)


def down_sample_blk(num_channels):
    blk = nn.Sequential()
    blk.add(
        nn.Conv2D(num_channels, kernel_size=3, padding=1),
        nn.BatchNorm(in_channels=num_channels),
        nn.Activation("relu"),
        nn.MaxPool2D(2),
    )
    return blk


def base_net():
    blk = nn.Sequential()
    for num_filters in [8, 16]:
        blk.add(down_sample_blk(num_filters))
    return blk


def get_blk(i):
    if i == 0:
        return base_net()
    return nn.GlobalMaxPool2D() if i == 2 else down_sample_blk(16)


def blk_forward(X, blk, size, ratio, cls_predictor, bbox_predictor):
    Y = blk(X)
    anchors = npx.multibox_prior(Y, sizes=size, ratios=ratio)
    cls_preds = cls_predictor(Y)
    bbox_preds = bbox_predictor(Y)
    return (Y, anchors, cls_preds, bbox_preds)


class TinySSD(nn.Block):
    def __init__(self, num_classes, **kwargs):
        super().__init__(**kwargs)
        self.num_classes = num_classes
        for i in range(3):
            # Equivalent to the assignment statement `self.blk_i = get_blk(i)`
            setattr(self, f"blk_{i}", get_blk(i))
            setattr(self, f"cls_{i}", cls_predictor(num_anchors, num_classes))
            setattr(self, f"bbox_{i}", bbox_predictor(num_anchors))

    def forward(self, X):
        anchors, cls_preds, bbox_preds = [None] * 3, [None] * 3, [None] * 3
        for i in range(3):
            # Here `getattr(self, 'blk_%d' % i)` accesses `self.blk_i`
            X, anchors[i], cls_preds[i], bbox_preds[i] = blk_forward(
                X,
                getattr(self, f"blk_{i}"),
                sizes[i],
                ratios[i],
                getattr(self, f"cls_{i}"),
                getattr(self, f"bbox_{i}"),
            )
        anchors = np.concatenate(anchors, axis=1)
        cls_preds = concat_preds(cls_preds)
        cls_preds = cls_preds.reshape(cls_preds.shape[0], -1, self.num_classes + 1)
        bbox_preds = concat_preds(bbox_preds)
        return anchors, cls_preds, bbox_preds


def load_data_squares(batch_size, num_examples=32):
    """Dark images with a bright square; a label is the class and the corners of the square."""
    random = numpy.random.RandomState(4)
    X = random.uniform(0, 0.3, (num_examples, 3, size, size))
    target = numpy.zeros((num_examples, 1, 5))
    for x, label in zip(X, target):
        side = random.randint(8, 16)
        left, top = random.randint(0, size - side, 2)
        x[:, top : top + side, left : left + side] += 0.7
        label[0, 1:] = numpy.array([left, top, left + side, top + side]) / size
    return d2l.load_array((np.array(X, dtype="float32"), np.array(target, dtype="float32")), batch_size)


cls_loss = gluon.loss.SoftmaxCrossEntropyLoss()
bbox_loss = gluon.loss.L1Loss()


def calc_loss(cls_preds, cls_labels, bbox_preds, bbox_labels, bbox_masks):
    cls = cls_loss(cls_preds, cls_labels)
    bbox = bbox_loss(bbox_preds * bbox_masks, bbox_labels * bbox_masks)
    return cls + bbox


def cls_eval(cls_preds, cls_labels):
    # Because the class prediction results are on the final dimension, `argmax` needs to specify this dimension
    return float((cls_preds.argmax(axis=-1).astype(cls_labels.dtype) == cls_labels).sum())


def bbox_eval(bbox_preds, bbox_labels, bbox_masks):
    return float((np.abs((bbox_labels - bbox_preds) * bbox_masks)).sum())


def detect(net, X):
    """The best box of each image: class, confidence and corners."""
    anchors, cls_preds, bbox_preds = net(X)
    cls_probs = npx.softmax(cls_preds).transpose(0, 2, 1)
    return npx.multibox_detection(cls_probs, bbox_preds, anchors)[:, 0]


def make():
    net = TinySSD(num_classes=num_classes)
    net.initialize(init=init.Xavier())
    return net, load_data_squares(batch_size)


def by_hand(net, train_iter):
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": lr, "wd": 5e-4})
    rows = []
    for _ in range(num_epochs):
        # Sum of losses, no. of examples
        metric = d2l.Accumulator(2)
        for X, Y in train_iter:
            with autograd.record():
                # Generate multiscale anchor boxes and predict their classes and offsets
                anchors, cls_preds, bbox_preds = net(X)
                # Label the classes and offsets of these anchor boxes
                bbox_labels, bbox_masks, cls_labels = npx.multibox_target(anchors, Y, cls_preds.transpose(0, 2, 1))
                # Calculate the loss function using the predicted and labeled values of the classes and offsets
                l = calc_loss(cls_preds, cls_labels, bbox_preds, bbox_labels, bbox_masks)
            l.backward()
            trainer.step(batch_size)
            metric.add(l.sum(), l.size)
        rows.append(metric[0] / metric[1])
    return rows


def with_mxkit(net, train_iter):
    def multibox(net, inputs, labels):
        anchors, cls_preds, bbox_preds = net(*inputs)
        # Label the classes and offsets of these anchor boxes
        bbox_labels, bbox_masks, cls_labels = npx.multibox_target(anchors, *labels, cls_preds.transpose(0, 2, 1))
        return calc_loss(cls_preds, cls_labels, bbox_preds, bbox_labels, bbox_masks)

    sgd = ("sgd", {"learning_rate": lr, "wd": 5e-4})
    loss = mxkit.losses.BatchLoss(forward=multibox)
    return mxkit.fit(net, train_iter, loss=loss, trainer=sgd, epochs=num_epochs).column("train_loss")
