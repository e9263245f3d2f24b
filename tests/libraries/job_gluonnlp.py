"""Trains a small BERT classifier and a language model on sentences, batched by the library's own functions.

用库自己的函数把句子组成批次，训练一个小的 BERT 分类器和一个语言模型。
"""

import gluonnlp as nlp
import mxnet as mx
from mxnet import autograd, gluon
import numpy as np

sentences = [["good", "day"], ["bad", "night", "here"], ["good", "night"], ["bad", "day", "there", "again"]]
vocab = nlp.Vocab(nlp.data.count_tokens(sum(sentences, [])))
tokens, lengths = nlp.data.batchify.Tuple(nlp.data.batchify.Pad(pad_val=0), nlp.data.batchify.Stack("float32"))(
    [(vocab[sentence], len(sentence)) for sentence in sentences]
)
tokens, lengths = tokens.as_in_context(mx.cpu()), lengths.as_in_context(mx.cpu())
encoder = nlp.model.BERTEncoder(num_layers=2, units=16, hidden_size=32, num_heads=2, max_length=8, dropout=0.1)
bert = nlp.model.BERTModel(encoder, len(vocab), 2, units=16, embed_size=16, use_decoder=False, use_classifier=False)
classifier = nlp.model.BERTClassifier(bert, num_classes=2)
classifier.initialize(mx.init.Normal(0.02))
classifier.hybridize()
model = nlp.model.StandardRNN("lstm", len(vocab), 16, 16, 1, dropout=0.1, tie_weights=True)
model.initialize(mx.init.Xavier())
loss = gluon.loss.SoftmaxCELoss()
trainers = [
    gluon.Trainer(classifier.collect_params(), "bertadam", {"learning_rate": 1e-3}),
    gluon.Trainer(model.collect_params(), "adam", {"learning_rate": 1e-2}),
]
labels, segments = mx.nd.array([1, 0, 1, 0]), mx.nd.zeros_like(tokens)
for _ in range(10):
    with autograd.record():
        losses = [loss(classifier(tokens.astype("float32"), segments.astype("float32"), lengths), labels)]
        scores, _ = model(tokens.T.astype("float32"), model.begin_state(batch_size=4))
        losses.append(loss(scores[:-1].reshape((-3, -1)), tokens.T[1:].reshape(-1)))
    autograd.backward(losses)
    for trainer in trainers:
        trainer.step(4)
print([float(np.mean(one.asnumpy())) for one in losses])
