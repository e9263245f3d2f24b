"""Embeds sentences by a BERT with random weights in place of the pretrained ones, which would be downloaded.

用随机权重的 BERT 给句子算词向量；预训练的权重需要下载。
"""

from bert_embedding import BertEmbedding
import gluonnlp as nlp

words = ["[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]", "good", "day", "##s"]
numbers = {"[UNK]": 0, "[PAD]": 1, "[CLS]": 2, "[SEP]": 3}  # the library knows these numbers
vocab = nlp.vocab.BERTVocab(nlp.data.count_tokens(words), token_to_idx=numbers)


def small_model(*names, ctx, **settings):
    encoder = nlp.model.BERTEncoder(num_layers=2, units=16, hidden_size=32, num_heads=2, max_length=32)
    bert = nlp.model.BERTModel(
        encoder, len(vocab), 2, 16, 16, use_pooler=False, use_decoder=False, use_classifier=False
    )
    bert.initialize(ctx=ctx)
    return bert, vocab


nlp.model.get_model = small_model
for tokens, vectors in BertEmbedding(max_seq_length=8)(["good days", "day"]):
    print(tokens, len(vectors), vectors[0].shape)
