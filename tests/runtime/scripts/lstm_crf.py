import mxnet as mx
from mxnet import autograd as ag, gluon, ndarray as nd
from mxnet.gluon import nn, rnn, Block
import mxnet.optimizer as optim
import numpy as np

mx.random.seed(1)
START, STOP = "<START>", "<STOP>"
training_data = [("the wall street journal reported today".split(), "B I I I O O".split()),
                 ("georgia tech is a university in georgia".split(), "B I O O O O B".split())]
word_to_ix, tag_to_ix = {}, {"B": 0, "I": 1, "O": 2, START: 3, STOP: 4}
for sentence, _ in training_data:
    for word in sentence:
        word_to_ix.setdefault(word, len(word_to_ix))
n = len(tag_to_ix)


def log_sum_exp(vec):
    max_score = nd.max(vec).asscalar()
    return nd.log(nd.sum(nd.exp(vec - max_score))) + max_score


class BiLSTM_CRF(Block):
    def __init__(self, vocab_size, hidden):
        super(BiLSTM_CRF, self).__init__()
        with self.name_scope():
            self.embeds = nn.Embedding(vocab_size, 5)
            self.lstm = rnn.LSTM(hidden // 2, num_layers=1, bidirectional=True)
            self.hidden2tag = nn.Dense(n)
            self.transitions = self.params.get("crf_transitions", shape=(n, n))

    def score(self, feats, tags):
        t, total = self.transitions.data(), nd.array([0])
        tags = nd.concat(nd.array([tag_to_ix[START]]), *[tags], dim=0)
        for i, feat in enumerate(feats):
            total = total + t[int(tags[i + 1].asscalar()), int(tags[i].asscalar())] + feat[int(tags[i + 1].asscalar())]
        return total + t[tag_to_ix[STOP], int(tags[-1].asscalar())]

    def forward_alg(self, feats):
        alphas = [[-10000.] * n]
        alphas[0][tag_to_ix[START]] = 0.
        alphas = nd.array(alphas)
        for feat in feats:
            rows = [log_sum_exp(alphas + feat[k].reshape((1, 1)) + self.transitions.data()[k].reshape((1, -1)))
                    for k in range(n)]
            alphas = nd.concat(*rows, dim=0).reshape((1, -1))
        return log_sum_exp(alphas + self.transitions.data()[tag_to_ix[STOP]])

    def neg_log_likelihood(self, sentence, tags):
        feats = self.hidden2tag(self.lstm(self.embeds(sentence).reshape((len(sentence), 1, -1))).reshape((len(sentence), -1)))
        feats = nd.split(feats, num_outputs=feats.shape[0], axis=0, squeeze_axis=True)
        return self.forward_alg(feats) - self.score(feats, tags)


model = BiLSTM_CRF(len(word_to_ix), 4)
model.initialize(mx.init.Xavier(magnitude=2.24))
optimizer = gluon.Trainer(model.collect_params(), 'sgd', {'learning_rate': 0.05, 'wd': 1e-4})
history = []
for epoch in range(6):
    total = 0
    for sentence, tags in training_data:
        words, targets = nd.array([word_to_ix[w] for w in sentence]), nd.array([tag_to_ix[t] for t in tags])
        with ag.record():
            value = model.neg_log_likelihood(words, targets)
        value.backward()
        optimizer.step(1)
        total += value.asscalar()
    history.append(total)
print(["%.3f" % value for value in history], isinstance(optim.create('sgd'), optim.SGD))
assert history[-1] < history[0] and np.isfinite(history).all()
