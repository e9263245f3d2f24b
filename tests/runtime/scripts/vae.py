import mxnet as mx
from mxnet import autograd, gluon, nd
import numpy as np

mx.random.seed(0)
np.random.seed(0)
n_latent, n_hidden, n_output, batch_size = 2, 24, 16, 20
data = (np.random.uniform(size=(100, n_output)) < np.linspace(0.1, 0.9, n_output)).astype('float32')
train_iter = mx.io.NDArrayIter(data={'data': data}, label={'label': np.zeros(100)}, batch_size=batch_size)


class VAE(gluon.HybridBlock):
    def __init__(self, **kwargs):
        self.output = self.mu = None
        super(VAE, self).__init__(**kwargs)
        with self.name_scope():
            self.encoder, self.decoder = gluon.nn.HybridSequential('encoder'), gluon.nn.HybridSequential('decoder')
            self.encoder.add(gluon.nn.Dense(n_hidden, activation='relu'), gluon.nn.Dense(n_latent * 2, activation=None))
            self.decoder.add(gluon.nn.Dense(n_hidden, activation='relu'), gluon.nn.Dense(n_output, activation='sigmoid'))

    def hybrid_forward(self, F, x):
        mu, lv = F.split(self.encoder(x), axis=1, num_outputs=2)
        eps = F.random_normal(loc=0, scale=1, shape=(batch_size, n_latent))
        y = self.decoder(mu + F.exp(0.5 * lv) * eps)
        KL = 0.5 * F.sum(1 + lv - mu * mu - F.exp(lv), axis=1)
        logloss = F.sum(x * F.log(y + 1e-10) + (1 - x) * F.log(1 - y + 1e-10), axis=1)
        return -logloss - KL


net = VAE()
net.collect_params().initialize(mx.init.Xavier())
net.hybridize()
print(net)
trainer = gluon.Trainer(net.collect_params(), 'adam', {'learning_rate': .01})
training_loss = []
for epoch in range(8):
    epoch_loss = 0
    train_iter.reset()
    for batch in train_iter:
        with autograd.record():
            loss = net(batch.data[0].as_in_context(mx.cpu()))
        loss.backward()
        trainer.step(batch_size)
        epoch_loss += nd.mean(loss).asscalar()
    training_loss.append(epoch_loss / 5)
print('%.4f -> %.4f' % (training_loss[0], training_loss[-1]))
assert training_loss[-1] < training_loss[0]
