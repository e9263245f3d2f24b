"""The kinds of data that a loop reads: the same batches train the same bits."""

import multiprocessing
import os

from built_nets import hybrid_net, ready
import mxkit
from mxkit.data.source import source_of
from mxkit.errors import DataError
import mxnet as mx
from mxnet import gluon
import numpy as np
from oracle import CLASSES, FEATURES, SOFTMAX, fit, make_batches, make_net
import pytest

X = np.random.RandomState(0).randn(11, FEATURES).astype("float32")
Y = np.random.RandomState(1).randint(0, CLASSES, 11).astype("int32")
TRUE = [(X[i : i + 4], Y[i : i + 4]) for i in range(0, 11, 4)]  # 4, 4 and 3 samples
DATASET = gluon.data.ArrayDataset(X, Y)


def test_padding_does_not_count_in_predict():
    net = make_net()
    found = mxkit.predict(net, mx.io.NDArrayIter(X, Y, batch_size=4, last_batch_handle="pad"))
    np.testing.assert_allclose(found.asnumpy(), net(mx.nd.array(X)).asnumpy(), rtol=1e-6, atol=1e-7)


def test_a_hybridized_net_takes_batches_of_threads_and_numpy():
    """T44."""
    net = make_net(hybridize=True)
    data = gluon.data.DataLoader(DATASET, 4, num_workers=1, thread_pool=True)
    assert [update.samples for update in mxkit.updates(net, data, loss=SOFTMAX, trainer="sgd")] == [4, 4, 3]


def test_batches_without_labels_train_where_the_loss_takes_none():
    net = make_net()
    found = list(mxkit.updates(net, [X[:4], (X[4:],)], loss=lambda output: output.square().mean(axis=1), trainer="sgd"))
    assert [update.samples for update in found] == [4, 7]


@pytest.mark.parametrize("epochs", [1, 3])
def test_a_shuffling_loader_gets_the_epoch_and_another_order_each_time(epochs):
    seen = []

    def loss(output, label):
        seen.append(label.asnumpy().tolist())
        return output.mean(axis=1)

    loader = mxkit.data.ArrayLoader(X, np.arange(11), batch_size=11, shuffle=True, seed=5)
    list(loader)  # read before: no matter
    fit(make_net(), loader, loss=loss, epochs=epochs)
    assert seen == [loader.order(epoch).tolist() for epoch in range(epochs)]


def rolling(x=X, y=Y):
    return mx.io.NDArrayIter(x, y, batch_size=4, last_batch_handle="roll_over")


def seen_by_fit(data, epochs):
    """What each epoch of a fit read: numbers of the rows, which their labels hold."""
    seen = []

    def note(net, inputs, labels):
        seen.extend(labels[0].asnumpy().astype(int).tolist())
        return SOFTMAX(net(*inputs), labels[0] * 0)

    history = fit(make_net(), data, loss=mxkit.losses.BatchLoss(forward=note), epochs=epochs)
    counts = [row["samples"] for row in history]
    return counts, [seen[sum(counts[:i]) : sum(counts[: i + 1])] for i in range(epochs)]


@pytest.mark.parametrize("wrapped", [False, True], ids=["alone", "inside of PrefetchingIter"])
def test_samples_that_roll_over_to_the_next_epoch_are_trained(wrapped):
    """T122."""
    data = rolling(y=np.arange(11))
    counts, epochs = seen_by_fit(mx.io.PrefetchingIter(data) if wrapped else data, 4)
    assert counts == [8, 12, 12, 12]
    assert epochs[1][:3] == [8, 9, 10]  # what the first epoch left over, and `pad` counts
    assert sorted(sum(epochs, []))[: 4 * 8] == sorted(list(range(8)) * 4)


def csv_rows(folder, **arguments):
    np.savetxt(folder / "x.csv", np.repeat(np.arange(10.0)[:, None], FEATURES, 1), delimiter=",")
    np.savetxt(folder / "y.csv", np.arange(10.0), delimiter=",")
    files = {"data_csv": str(folder / "x.csv"), "label_csv": str(folder / "y.csv")}
    return mx.io.CSVIter(data_shape=(FEATURES,), label_shape=(1,), batch_size=4, **files, **arguments)


def test_an_iterator_of_c_plus_plus_loses_no_row(tmp_path):
    """T122."""
    counts, epochs = seen_by_fit(csv_rows(tmp_path), 4)
    # the last batch takes rows of the next pass, which leaves them out
    assert counts == [12, 8, 12, 8]
    assert sorted(sum(epochs, [])) == sorted(list(range(10)) * 4)
    counts, epochs = seen_by_fit(csv_rows(tmp_path, round_batch=False), 3)
    assert epochs == [list(range(10))] * 3


def test_predict_and_evaluate_read_each_row_once_or_refuse(tmp_path):
    """T122."""
    net = make_net()
    found = mxkit.predict(net, csv_rows(tmp_path, round_batch=False)).asnumpy()
    rows = np.repeat(np.arange(10.0, dtype="float32")[:, None], FEATURES, 1)
    np.testing.assert_allclose(found, mxkit.predict(net, rows).asnumpy(), rtol=1e-6)
    with pytest.raises(DataError, match=r"data: each sample .* holds 2 samples of the next pass.* round_batch=False"):
        mxkit.predict(net, csv_rows(tmp_path))


def records(folder, **arguments):
    """22 images without pixels to speak of, labelled 0 to 21, in batches of five."""
    names = {"path_imgrec": str(folder / "a.rec"), "path_imgidx": str(folder / "a.idx")}
    writer = mx.recordio.MXIndexedRecordIO(names["path_imgidx"], names["path_imgrec"], "w")
    for number in range(22):
        header = mx.recordio.IRHeader(0, float(number), number, 0)
        writer.write_idx(number, mx.recordio.pack_img(header, np.zeros((8, 8, 3), np.uint8), quality=9, img_fmt=".png"))
    writer.close()
    return mx.io.ImageRecordIter(data_shape=(3, 8, 8), batch_size=5, verbose=False, **names, **arguments)


@pytest.mark.parametrize("shuffle", [False, True])
def test_image_record_iter_loses_no_sample_or_is_refused(tmp_path, shuffle):
    """T190."""
    rows = records(tmp_path, shuffle=shuffle)
    epochs = [[y[0].asnumpy() for _, y in source_of(rows).read(epoch)] for epoch in range(5)]
    assert [sum(map(len, epoch)) for epoch in epochs] == [25, 20, 25, 20, 20]
    assert np.bincount(np.concatenate(sum(epochs, [])).astype(int)).tolist() == [5] * 22
    with pytest.raises(DataError, match=r"data: ImageRecordIter .* of the next pass. Read the file with .*64\)$"):
        list(source_of(records(tmp_path, shuffle=shuffle)).read(once=True))
    # its last batch holds three samples that no file has, with labels like -131077, and a pad of 0
    rows = records(tmp_path, shuffle=shuffle, round_batch=False)
    with pytest.raises(DataError, match=r"unwritten memory.*image_records.* or make the iterator with round_batch=T"):
        next(source_of(rows).read(0))


PARTIAL = {
    "roll_over": (lambda: rolling(), "NDArrayIter has last_batch_handle='roll_over'.* Make it with 'pad'"),
    "roll_over inside": (lambda: mx.io.PrefetchingIter(rolling()), "PrefetchingIter has last_batch_handle='roll_over'"),
    "discard": (lambda: mx.io.NDArrayIter(X, Y, 4, last_batch_handle="discard"), "last_batch_handle='discard'"),
    "ResizeIter": (lambda: mx.io.ResizeIter(mx.io.NDArrayIter(X, Y, 4), 4), "ResizeIter gives a number of batches"),
    "rollover": (lambda: gluon.data.DataLoader(DATASET, 4, last_batch="rollover"), "last_batch='rollover'.* 'keep'"),
    "stream with drop_last": (
        lambda: mxkit.data.StreamLoader(lambda: zip(X, Y), 4, drop_last=True),
        "drop_last=True, which leaves out the last ones. Make",
    ),
    "drop_last": (lambda: mxkit.data.ArrayLoader(X, Y, 4, drop_last=True), "drop_last=True, which leaves out 3. Make"),
}


@pytest.mark.parametrize(("make", "text"), PARTIAL.values(), ids=PARTIAL)
def test_a_pass_that_leaves_samples_out_is_no_evaluation(make, text):
    """T122."""
    for call in (
        lambda: mxkit.predict(make_net(), make()),
        lambda: mxkit.evaluate(make_net(), make(), loss="softmax_ce"),
        lambda: fit(make_net(), TRUE, valid=make()),
    ):
        with pytest.raises(DataError, match=text):
            call()


def test_nothing_is_left_out_where_batches_divide_the_samples():
    """T122."""
    assert mxkit.predict(make_net(), rolling(X[:8], Y[:8])).shape == (8, CLASSES)
    assert mxkit.predict(make_net(), mxkit.data.ArrayLoader(X[:8], None, 4, drop_last=True)).shape == (8, CLASSES)


@pytest.mark.parametrize("part", [mxkit.data.Split(X, Y), (X, mx.nd.array(Y, dtype="int32")), DATASET])
def test_samples_that_are_no_batches_are_evaluated_as_a_whole(part):
    expected = mxkit.evaluate(make_net(), TRUE, loss="softmax_ce", metrics=["accuracy"])
    assert mxkit.evaluate(make_net(), part, loss="softmax_ce", metrics=["accuracy"]) == pytest.approx(expected)
    (row,) = fit(make_net(), TRUE, valid=part, trainer=("sgd", {"learning_rate": 1e-9}))
    assert row["valid_loss"] == pytest.approx(expected["loss"], rel=1e-5)
    if not isinstance(part, tuple) or hasattr(part, "x"):
        found = mxkit.predict(make_net(), part).asnumpy()
        np.testing.assert_allclose(found, mxkit.predict(make_net(), X).asnumpy(), rtol=1e-6)


def test_valid_of_uint8_has_the_scale_of_train():
    x = np.random.RandomState(3).randint(0, 9, (11, 5)).astype("uint8")
    train = mxkit.data.ArrayLoader(x, Y, 4, scale=0.25)
    for valid in ((x, Y), mxkit.data.Split(x, Y)):
        (row,) = fit(make_net(), train, valid=valid, trainer=("sgd", {"learning_rate": 1e-9}))
        assert row["valid_loss"] == pytest.approx(mxkit.evaluate(make_net(), train, loss="softmax_ce")["loss"], 1e-5)


def test_predict_of_two_inputs_names_the_way():
    layers = {"left": gluon.nn.Dense(CLASSES, in_units=FEATURES), "right": gluon.nn.Dense(CLASSES, in_units=2)}
    net = ready(hybrid_net(lambda net, F, x, z: net.left(x) + net.right(z), **layers))
    z = X[:, :2]
    with pytest.raises(DataError, match=r"predict: a tuple of arrays can be .*ArrayLoader\(\(x1, x2\), None"):
        mxkit.predict(net, (X, z))
    found = mxkit.predict(net, mxkit.data.ArrayLoader((X, z), None, batch_size=256))
    np.testing.assert_allclose(found.asnumpy(), net(mx.nd.array(X), mx.nd.array(z)).asnumpy(), rtol=1e-6)


def test_updates_reads_lazily():
    drawn = []

    def data():
        for batch in make_batches([4] * 5):
            drawn.append(1)
            yield batch

    stream = mxkit.updates(make_net(), data, loss=SOFTMAX, trainer="sgd")
    assert not drawn
    next(stream)
    assert len(drawn) == 1


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="spawn takes seconds")
def test_processes_of_a_loader_stay_for_all_epochs_of_a_fit_and_end_with_it():
    seen = []

    def process(number):
        return np.full(FEATURES, os.getpid(), np.float32) * 1e-6, np.int32(number % 2)

    def note(net, inputs, labels):
        seen.append(set((inputs[0][:, 0].asnumpy() * 1e6).round().astype(int)))
        return SOFTMAX(net(*inputs), *labels)

    samples = gluon.data.SimpleDataset(range(8)).transform(process)
    loader = mxkit.data.DatasetLoader(samples, 2, workers="process:2")
    fit(make_net(), loader, loss=mxkit.losses.BatchLoss(forward=note), epochs=3)
    assert len(set.union(*seen)) == 2
    assert len(seen) >= 12
    assert not multiprocessing.active_children()
