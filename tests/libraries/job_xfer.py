"""Adapts a pretrained Module by a linear model, a finetuned net and a Bayesian net.

用线性模型、微调的网络和贝叶斯网络改造一个预训练的 Module。
"""

import mxnet as mx
import numpy as np
import xfer

data = mx.sym.Variable("data")
hidden = mx.sym.Activation(mx.sym.FullyConnected(data, num_hidden=8, name="fc1"), act_type="relu", name="relu1")
source = mx.mod.Module(mx.sym.SoftmaxOutput(mx.sym.FullyConnected(hidden, num_hidden=3, name="fc2"), name="softmax"))
rng = np.random.RandomState(0)
features, labels = rng.rand(32, 4).astype("float32"), (np.arange(32) % 2).astype("float32")
batches = mx.io.NDArrayIter(features, labels, 8, label_name="softmax_label")
source.bind(batches.provide_data, batches.provide_label)
source.init_params(mx.init.Xavier())
linear = xfer.LrRepurposer(source, feature_layer_names=["relu1"])
linear.repurpose(batches)
print(linear.predict_label(batches).shape)
tuned = xfer.NeuralNetworkFineTuneRepurposer(source, transfer_layer_name="relu1", target_class_count=2, num_epochs=1)
tuned.repurpose(batches)
print(tuned.predict_label(batches).shape)
bayesian = xfer.BnnRepurposer(source, feature_layer_names=["relu1"], num_samples_mc=2, num_epochs=1)
bayesian.repurpose(batches)
print(bayesian.predict_label(batches).shape)
