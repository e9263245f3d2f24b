"""Trains GCN, GraphSAGE and GAT layers on a graph, and reads batches of graphs out.

在一张图上训练 GCN、GraphSAGE 和 GAT 层，并读出成批的图。
"""

import os

os.environ["DGLBACKEND"] = "mxnet"

import dgl
import dgl.function as fn
from dgl.nn.mxnet import GATConv, GraphConv, SAGEConv
import mxnet as mx
from mxnet import autograd, gluon
import numpy as np

rng = np.random.RandomState(0)
graph = dgl.add_self_loop(dgl.graph((rng.randint(0, 30, 90), rng.randint(0, 30, 90)), num_nodes=30))
features, labels = mx.nd.array(rng.rand(30, 5)), mx.nd.array(np.arange(30) % 3)
for layers in (
    [GraphConv(5, 8, activation=mx.nd.relu), GraphConv(8, 3)],
    [SAGEConv(5, 8, "mean"), SAGEConv(8, 3, "mean")],
    [GATConv(5, 3, num_heads=1)],
):
    net = gluon.nn.Sequential()
    net.add(*layers)
    net.initialize(mx.init.Xavier())
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.01})
    for _ in range(5):
        with autograd.record():
            hidden = features
            for layer in layers:
                hidden = layer(graph, hidden)
            loss = gluon.loss.SoftmaxCELoss()(hidden.reshape((30, 3)), labels)
        loss.backward()
        trainer.step(30)
    print(type(layers[0]).__name__, loss.mean().asscalar())
graph.ndata["h"] = features
graph.update_all(fn.copy_u("h", "m"), fn.sum("m", "sum"))
batch = dgl.batch([graph, graph])
print(dgl.readout_nodes(batch, "sum").shape)
