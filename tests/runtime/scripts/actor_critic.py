import mxnet as mx
import mxnet.gluon as gluon
import mxnet.ndarray as F
from mxnet import autograd
import numpy as np

mx.random.seed(0)
np.random.seed(0)


class Policy(gluon.Block):
    def __init__(self, **kwargs):
        super(Policy, self).__init__(**kwargs)
        with self.name_scope():
            self.dense = gluon.nn.Dense(16, in_units=2, activation='relu')
            self.action_pred = gluon.nn.Dense(2, in_units=16)
            self.value_pred = gluon.nn.Dense(1, in_units=16)

    def forward(self, x):
        x = self.dense(x)
        return F.softmax(self.action_pred(x)), self.value_pred(x)


net = Policy()
net.initialize(mx.init.Uniform(0.02))
trainer = gluon.Trainer(net.collect_params(), 'adam', {'learning_rate': 3e-2})
loss = gluon.loss.L1Loss()
running_reward = 5
for epoch in range(60):
    state, rewards, values, heads, actions = np.random.uniform(-1, 1, 2), [], [], [], []
    with autograd.record():
        for t in range(10):
            prob, value = net(F.array(np.array([state])))
            action, logp = F.sample_multinomial(prob, get_prob=True)
            chosen = action.asnumpy()[0]
            rewards.append(float(chosen == int(state[0] > 0)))
            values.append(value), heads.append(logp), actions.append(chosen)
            state = np.random.uniform(-1, 1, 2)
        running_reward = running_reward * 0.95 + sum(rewards) * 0.05
        R, losses = 0, []
        for i in range(len(rewards) - 1, -1, -1):
            R = rewards[i] + 0.5 * R
            advantage = R - values[i].reshape((1,)).asscalar()
            losses.extend([loss(values[i], F.array([R])), -heads[i] * advantage])
        autograd.backward(losses)
    trainer.step(batch_size=1)
print('running reward %.3f' % running_reward)
assert running_reward > 5.5
