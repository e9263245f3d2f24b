from mxnet.gluon import nn


def captioner(vocabulary):
    return nn.Embedding(vocabulary, 8)
