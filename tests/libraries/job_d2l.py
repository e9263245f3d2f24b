"""Chapter 3 of the book, softmax regression from the library's parts on data made here; an LSTM; attention.

书的第三章：用库的部件做 softmax 回归，数据在这里生成；还有循环网络和注意力。
"""

from d2l import mxnet as d2l
from mxnet import autograd, gluon, init, np, npx
from mxnet.gluon import nn, rnn

npx.set_np()
x, y = d2l.synthetic_data(np.array([2, -3.4]), 4.2, 64)
batches = d2l.load_array((x, (y > 4).reshape(-1).astype("float32")), 16)
net = nn.Sequential()
net.add(nn.Dense(2))
net.initialize(init.Normal(sigma=0.01))
loss, trainer = gluon.loss.SoftmaxCrossEntropyLoss(), gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.5})
for _ in range(3):
    print(d2l.train_epoch_ch3(net, batches, loss, lambda size: trainer.step(size)))
print(d2l.evaluate_accuracy(net, batches))
animator = d2l.Animator(xlabel="epoch", xlim=[1, 3])
animator.add(1, (0.5, 0.6))
timer = d2l.Timer()
model = d2l.RNNModel(rnn.LSTM(8), 28)
model.initialize()
scores, _ = model(np.zeros((2, 5)), model.begin_state(batch_size=2, ctx=d2l.try_gpu()))
print(scores.shape, timer.stop() >= 0)
attention = d2l.MultiHeadAttention(8, 2, 0.1)
attention.initialize()
with autograd.record():
    print(attention(np.ones((2, 4, 8)), np.ones((2, 6, 8)), np.ones((2, 6, 8)), np.array([3, 2])).shape)
