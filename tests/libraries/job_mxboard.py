"""Writes scalars, histograms, an image, text, an embedding and a graph for TensorBoard.

为 TensorBoard 写标量、直方图、图像、文本、嵌入和计算图。
"""

import glob
import tempfile

from mxboard import SummaryWriter
import mxnet as mx

net = mx.gluon.nn.HybridSequential()
net.add(mx.gluon.nn.Dense(2))
net.initialize()
net.hybridize()
net(mx.nd.ones((2, 3)))
with tempfile.TemporaryDirectory() as folder, SummaryWriter(logdir=folder) as writer:
    writer.add_scalar("loss", mx.nd.ones(1).asnumpy(), 1)
    writer.add_scalar("losses", {"train": 1.0, "valid": 2.0}, 1)
    writer.add_histogram("weights", net[0].weight.data(), global_step=1, bins=10)
    writer.add_image("image", mx.nd.random.uniform(shape=(3, 8, 8)), 1)
    writer.add_text("text", "a line", 1)
    writer.add_embedding("points", mx.nd.random.uniform(shape=(4, 3)), labels=mx.nd.arange(4))
    writer.add_pr_curve("curve", mx.nd.array([0, 1, 1]), mx.nd.array([0.1, 0.8, 0.6]), 10)
    writer.add_graph(net)
    writer.flush()
    print(len(glob.glob(f"{folder}/*tfevents*")), "file of events")
