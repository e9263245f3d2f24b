"""Classes of unequal sizes: weights as scikit-learn's, and orders with each class equally often."""

from batches import assert_same, read
from hypothesis import given, settings
from hypothesis import strategies as st
import mxkit
from mxkit.data import ArrayLoader, DatasetLoader, class_weights
import mxnet as mx
import numpy as np
import pytest
from sharing import examples
from sklearn.utils.class_weight import compute_class_weight

LABELS = st.lists(st.integers(0, 5), min_size=1, max_size=60).map(np.array)
KINDS = {
    "arrays": lambda labels, **options: ArrayLoader(np.arange(len(labels)), labels, balance=labels, **options),
    "dataset": lambda labels, **options: DatasetLoader(
        list(zip(np.arange(len(labels)), labels)), balance=[f"class {one}" for one in labels], draws=(), **options
    ),
}


@settings(max_examples=examples(100))
@given(labels=LABELS)
def test_class_weights_are_those_of_scikit_learn(labels):
    classes = np.unique(labels)
    expected = compute_class_weight("balanced", classes=classes, y=labels)
    np.testing.assert_allclose([class_weights(labels)[one] for one in classes], expected)
    assert class_weights(mx.nd.array(labels)) == class_weights(labels)
    np.testing.assert_allclose(np.mean([class_weights(labels)[one] for one in labels]), 1)


@settings(max_examples=examples(100))
@given(
    kind=st.sampled_from(sorted(KINDS)), labels=LABELS, batch_size=st.integers(1, 9), seed=st.integers(0, 2**40),
    epoch=st.integers(0, 1000), shares=st.integers(1, 3),
)  # fmt: skip
def test_each_class_and_each_of_its_samples_occurs_equally_often(kind, labels, batch_size, seed, epoch, shares):
    def loader(share=0, of=1):
        made = KINDS[kind](labels, batch_size=batch_size, shuffle=True, seed=seed)
        made.epoch, made.share = epoch, (share, of)
        return made

    batches = read(loader())
    numbers, classes = (np.concatenate(parts) for parts in zip(*batches))
    np.testing.assert_array_equal(labels[numbers.astype(int)], classes)
    assert len(numbers) == len(labels)
    counts = [np.count_nonzero(classes == one) for one in np.unique(labels)]
    assert max(counts) - min(counts) <= 1
    for one in np.unique(labels):
        of_samples = np.bincount(numbers.astype(int), minlength=len(labels))[labels == one]
        assert of_samples.max() - of_samples.min() <= 1
    whole = loader(0, shares).order(epoch)
    parts = [[y for _, y in read(loader(share, shares))] for share in range(shares)]
    cuts = [np.array_split(whole[start : start + batch_size * shares], shares) for start in
            range(0, len(whole), batch_size * shares)]  # fmt: skip
    for share in range(shares):
        expected = [labels[cut[share]] for cut in cuts if len(cut[share])]
        assert list(map(list, parts[share])) == list(map(list, expected))


def test_a_repeated_sample_draws_other_random_numbers_with_all_workers():
    def batches(workers):
        return read(DatasetLoader(
            [(np.zeros(1), y) for y in (0, 0, 0, 0, 0, 1)], 6, shuffle=True, seed=1, workers=workers,
            transform=lambda x, rng: x + rng.random(), balance=[0, 0, 0, 0, 0, 1],
        ))  # fmt: skip

    ((x, y),) = batches(0)
    assert len(set(x[y == 1].ravel().tolist())) == 3
    assert_same(batches("thread:2"), [(x, y)])
    assert_same(batches("process:1"), [(x, y)])


def test_another_balance_than_that_of_the_stopped_run_is_told(tmp_path):
    def run(balance, **options):
        net = mx.gluon.nn.Dense(2, in_units=1)
        net.initialize()
        data = ArrayLoader(np.ones((6, 1)), [0, 0, 0, 0, 1, 1], 2, shuffle=True, seed=5, balance=balance)
        mxkit.fit(net, data, loss="softmax_ce", trainer="sgd", progress=False, checkpoint=tmp_path, **options)

    run([0, 0, 0, 0, 1, 1], epochs=1)
    with pytest.warns(mxkit.errors.CheckpointWarning, match="balance was"):
        run(None, epochs=2, resume=True)
