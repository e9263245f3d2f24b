"""What each loss wants of outputs and labels: the text of each error, in training and in `evaluate`."""

from built_nets import plain_net, ready
from callback_runs import Named
import made_tables
import mxkit
from mxkit.errors import DataError, LabelError, TrapWarning
from mxkit.losses.named_losses import get_loss
import mxnet as mx
from mxnet import gluon
from mxnet.gluon.data.vision import transforms as vision
import numpy as np
from oracle import FEATURES, fit, make_net, traps, weights
import pytest

B, C = 6, 3
RANDOM = np.random.RandomState(0)
X = RANDOM.randn(B, FEATURES).astype("float32")
ONE_HOT = np.eye(C, dtype="float32")[[0, 1, 2, 0, 1, 2]]
SIGNS = ONE_HOT * 2 - 1


def refused(error, text, labels, loss, net=None, x=X, batch_size=6):
    """Both `fit` and `evaluate` refuse a batch and a loader, and no weight changes."""
    net = make_net() if net is None else net
    before = weights(net)
    for hybridize, data in ((False, [(x, labels)]), (True, mxkit.data.ArrayLoader(x, labels, batch_size))):
        net.hybridize(hybridize)
        with pytest.raises(error, match=text):
            fit(net, data, loss=loss)
        with pytest.raises(error, match=text):
            mxkit.evaluate(net, data, loss=loss)
    np.testing.assert_array_equal(weights(net), before)


@pytest.mark.long
def test_the_table_of_the_docs_is_what_happens():
    """If not: python tests/made_tables.py losses"""
    _, text, new = made_tables.made("losses")
    assert new == text


def one_output(*layers):
    return ready(gluon.nn.Dense(1, in_units=FEATURES), *layers, initializer=("normal", {"sigma": 1.0}))


def test_labels_of_sigmoid_bce_beyond_0_and_1():
    """T121."""
    labels = np.array([0, 9, 0, 9, 0, 9], "float32")

    text = "^labels must be from 0 to 1; received 9.0 in 3 of 6 labels. SigmoidBCELoss has no minimum for others. Class"
    refused(LabelError, text, labels, "sigmoid_bce", one_output())


HOT_OF_SIGNS = r"^labels must be -1 or 1; received 0.0 in 12 of 18 labels. .*Number the classes -1 and 1: 2 \* y - 1"
NO_ROWS = "labels must be distributions, at least 0 with the sum 1; received a row of .* in 6 of 6 rows"
SOFT = {"sparse_label": False}
VALUES = [
    *((loss, ONE_HOT, HOT_OF_SIGNS) for loss in ("hinge", "squared_hinge", "logistic", gluon.loss.HingeLoss())),
    (("logistic", {"label_format": "binary"}), SIGNS, "labels must be from 0 to 1; received -1.0 in 12 of 18 labels"),
    *(((loss, SOFT), ONE_HOT * 9, NO_ROWS) for loss in ("softmax_ce", "label_smoothing")),
    *((("softmax_ce", SOFT), wrong, NO_ROWS) for wrong in (ONE_HOT - 1, ONE_HOT * np.nan)),
    ("softmax_ce", np.array([0, 1, 2, 0, -1, -1]), "Padding may have any label if its weight is 0"),
    ("poisson_nll", SIGNS, "finite numbers of at least 0; received -1.0 in 12 of 18 labels. PoissonNLLLoss is for"),
    (
        "cosine_embedding",
        (SIGNS, np.arange(6) % 2),
        "labels must be -1 or 1; received 0 in 3 of 6 .* takes 1 for a pair",
    ),
]
WAYS = {
    (6,): r"expected shape \(6, 3\), which the net's outputs have; received \(6,\). One label per sample .*Dense\(1\)",
    (6, 2): r"received \(6, 2\). For 2 targets per sample give the net 2 outputs, Dense\(2\)",
    (6, 3, 2): r"received \(6, 3, 2\). Give the net outputs of the labels' shape",
}
NO_LOGS = r"KLDivLoss takes log-probabilities, and the net's outputs are none.*\('kl_div', \{'from_logits': False\}\)"
SHAPES = [
    *((loss, np.ones(shape), WAYS[shape]) for loss in ("l2", "sigmoid_bce", "hinge", "poisson_nll") for shape in WAYS),
    ("softmax_ce", ONE_HOT, r"of shape \(6,\).*received \(6, 3\). Labels with a column for each class need"),
    (("softmax_ce", SOFT), np.zeros(6, "float32"), "Class numbers need sparse_label=True, the default"),
    ("cosine_embedding", SIGNS, "received nothing after the embeddings|takes input2, label"),
    ("triplet", (SIGNS, ONE_HOT, np.ones(6)), "takes positive, negative after the net's output; received 3 arrays"),
    # outputs that do not suit the loss
    (("poisson_nll", {"from_logits": False}), ONE_HOT, "takes expected counts, but the net's smallest output is -"),
    *((loss, ONE_HOT, NO_LOGS) for loss in ("kl_div", gluon.loss.KLDivLoss())),
]


@pytest.mark.parametrize(("loss", "labels", "text"), VALUES, ids=[str(case[0]) for case in VALUES])
def test_values_that_a_loss_cannot_use_are_refused(loss, labels, text):
    """T121."""
    refused(LabelError, text, labels, loss)


@pytest.mark.parametrize(("loss", "labels", "text"), SHAPES, ids=[str(case[0]) for case in SHAPES])
def test_shapes_and_outputs_that_a_loss_cannot_use_are_refused(loss, labels, text):
    """T119, T121."""
    refused(DataError, text, labels, loss)


@pytest.mark.parametrize("name", ["softmax_ce", "focal", "label_smoothing"])
def test_a_softmax_over_one_output_trains_nothing(name):
    """T121."""
    text = "the net has one output, whose softmax is always 1: the loss is 0 .* take the loss 'sigmoid_bce'"
    for labels in (np.zeros(6, "float32"), np.array([0, 1, 0, 1, 0, 1], "float32")):
        refused(DataError, text, labels, name, one_output())


def test_label_format_of_logistic():
    """T121."""
    loss = ("logistic", {"label_format": "binary"})
    assert mxkit.evaluate(make_net(), [(X, ONE_HOT)], loss=loss) == pytest.approx(
        mxkit.evaluate(make_net(), [(X, SIGNS)], loss="logistic")
    )


@pytest.mark.parametrize("name", ["l1", "l2", "huber"])
def test_targets_that_are_nan_are_named_before_training(name):
    labels = ONE_HOT.copy()
    labels[5, 2] = np.nan  # of the second batch of the loader
    refused(LabelError, "^labels must be finite numbers; received nan in 1 of 18 labels", labels, name, batch_size=3)


def test_a_wrong_label_of_a_later_batch_is_found_in_labels_with_weights_too():
    labels = np.array([0, 1, 2, 0, 1, 7])
    loader = mxkit.data.ArrayLoader(X, (labels, np.ones(B)), 3)
    with pytest.raises(LabelError, match="received 7 in 1 of 6 labels"):
        fit(make_net(), loader)


def test_labels_that_a_transform_makes_are_those_that_are_checked():
    loader = mxkit.data.ArrayLoader(X, np.arange(3, 0, -1).repeat(2), 3, transform=lambda x, y, rng: (x, y - 1))
    fit(make_net(), loader)
    loader.transform = lambda x, y, rng: (x, y)
    with pytest.raises(LabelError, match="received 3"):
        mxkit.evaluate(make_net(), loader, loss="softmax_ce")


@pytest.mark.parametrize("name", ["l1", "l2", "huber", "sigmoid_bce"])
def test_axes_in_another_order_pair_the_wrong_elements(name):
    """T119."""
    net = ready(gluon.nn.Dense(3, in_units=5, flatten=False))
    x, y = RANDOM.rand(4, 2, 5).astype("float32"), RANDOM.rand(4, 3, 2).astype("float32")
    mxkit.evaluate(net, [(x, y.transpose(0, 2, 1).copy())], loss=name)
    text = r"expected shape \(4, 2, 3\), .*received \(4, 3, 2\). The number of elements is the same, the axes"
    refused(DataError, text, y, name, net, x)


@pytest.mark.parametrize(("shape", "units"), [((6,), 1), ((6, 1), 1), ((6, 1, 1), 1), ((6, 4), 4), ((6, 2, 2), 4)])
def test_axes_of_length_1_and_flat_outputs_fit(shape, units):
    net = ready(gluon.nn.Dense(units, in_units=FEATURES))
    y = RANDOM.rand(*shape).astype("float32")
    expected = ((net(mx.nd.array(X)).asnumpy() - y.reshape(6, units)) ** 2 / 2).mean()
    assert mxkit.evaluate(net, [(X, y)], loss="l2")["loss"] == pytest.approx(expected, rel=1e-5)


def test_a_later_batch_of_another_shape_is_refused():
    """T119."""
    good = (X, ONE_HOT)
    for hybridize in (False, True):
        with pytest.raises(DataError, match=r"expected shape \(6, 3\).*received \(6, 2\)"):
            fit(make_net(hybridize=hybridize), [good] * 3 + [(X, ONE_HOT[:, :2])], loss="l2")


class TestActivations:
    @pytest.mark.usefixtures("switched")
    @pytest.mark.parametrize("loss", ["sigmoid_bce", "logistic", gluon.loss.SigmoidBCELoss()], ids=str)
    @pytest.mark.parametrize("hybridize", [False, True])
    def test_a_sigmoid_in_the_net_and_in_the_loss(self, loss, hybridize):
        """T12."""
        net = one_output(gluon.nn.Activation("sigmoid"), gluon.nn.HybridLambda(lambda F, x: x.reshape((-1,))))
        net.hybridize(hybridize)
        labels = np.array([1, 1, 1, 1, 1, 1], "float32")
        text = r"applies a sigmoid to them again. Take the sigmoid out of the net; .* \(T12\)"
        with pytest.warns(TrapWarning, match=text):
            mxkit.evaluate(net, [(X, labels)], loss=loss)
        run = lambda: fit(net, [(X, labels)], loss=loss, epochs=3, valid=[(X, labels)])  # noqa: E731
        assert len([one for one in traps(run) if "T12" in one]) == 1  # once, not for each validation

    def test_scores_that_lie_between_0_and_1_are_no_sigmoid(self):
        net = ready(gluon.nn.Dense(1, in_units=1, use_bias=False), initializer="ones")
        x, y = np.linspace(0.1, 0.9, 40, dtype="float32").reshape(-1, 1), np.ones((40, 1), "float32")
        assert traps(lambda: mxkit.evaluate(net, [(x, y)], loss="sigmoid_bce")) == []

        plain = plain_net(lambda plain, x: plain.net(x), net=net)  # nobody can look into it
        assert len(traps(lambda: mxkit.evaluate(plain, [(x, y)], loss="sigmoid_bce"))) == 1
        assert traps(lambda: mxkit.evaluate(plain, [(x[:8], y[:8])], loss="sigmoid_bce")) == []

    def test_kl_div_of_pixels_along_their_own_axis(self):
        net = ready(gluon.nn.Conv2D(3, 1), gluon.nn.HybridLambda(lambda F, x: F.log_softmax(x, axis=1)))
        y = np.moveaxis(RANDOM.dirichlet(np.ones(3), (2, 4, 5)), -1, 1).astype("float32")
        assert mxkit.evaluate(net, [(RANDOM.rand(2, 1, 4, 5), y)], loss="kl_div")["loss"] > 0

    @pytest.mark.parametrize("name", ["ctc", "distillation", "kl_div"])
    def test_a_softmax_in_the_net_and_in_the_loss(self, name):
        """T12."""
        net = ready(gluon.nn.Dense(C, in_units=FEATURES, flatten=False), gluon.nn.HybridLambda("softmax"))
        labels = {"ctc": np.zeros((2, 1)), "distillation": (SIGNS[:2], np.zeros(2))}.get(name, ONE_HOT[:2])
        x = X.reshape(2, 3, FEATURES) if name == "ctc" else X[:2]
        loss = (name, {"from_logits": False}) if name == "kl_div" else name
        told = traps(lambda: mxkit.evaluate(net, [(x, labels)], loss=loss))
        assert len(told) == 1
        assert "applies a softmax to them again" in told[0]

    def test_a_teacher_of_probabilities(self):
        """T12."""
        told = traps(lambda: mxkit.evaluate(make_net(), [(X, (ONE_HOT, np.zeros(6)))], loss="distillation"))
        assert len(told) == 1
        assert told[0].startswith("the teacher's scores are probabilities")


class TestSequences:
    STEPS = 5
    X = RANDOM.randn(3, STEPS, 2).astype("float32")

    def net(self):
        return ready(gluon.nn.Dense(4, in_units=2, flatten=False))

    def refused(self, error, text, *labels, loss="ctc"):
        refused(error, text, tuple(labels) if len(labels) > 1 else labels[0], loss, self.net(), self.X)

    @pytest.mark.parametrize(
        ("labels", "text"),
        [
            (
                [[0, 3], [1, 1], [2, -1]],
                "whole numbers from 0 to 2, or -1 for padding, because class 3 is the blank; rec.* 3",
            ),
            (
                [[0, 1], [-1, 1], [2, -1]],
                "followed only by padding, -1, and at least one per row; received a row of -1",
            ),
            ([[0, 1], [-1, -1], [2, -1]], "a meaningless loss for an empty row"),
            ([[1, 1, 1, 1], [0, 1, 2, 0], [0, -1, -1, -1]], "short enough for 5 steps: .* gives such a row the loss 0"),
            ([[0.5, 1], [1, 1], [2, -1]], "received 0.5 in 1 of 6 labels"),
        ],
        ids=["blank", "gap", "empty", "repeats", "part"],
    )
    def test_labels_that_mean_nothing(self, labels, text):
        """T121."""
        self.refused(LabelError, text, np.array(labels, "float32"))

    def test_shapes(self):
        self.refused(
            DataError, r"expected shape \(3, L\) with L at most the 5 steps.*received \(3, 6\)", np.zeros((3, 6))
        )
        self.refused(DataError, r"received \(3,\)", np.zeros(3))
        refused(DataError, r"expected shape \(B, T, C\); received \(6, 3\)", np.zeros((6, 2)), "ctc")
        text = r"expected shape \(5, L\).*received \(3, 2\). Outputs of shape \(3, 5, 4\) are read as layout='TNC'"
        self.refused(DataError, text, np.zeros((3, 2)), loss=("ctc", {"layout": "TNC"}))
        with pytest.raises(ValueError, match="axis 0 of every array of a batch is the sample axis.*label_layout='NT'"):
            get_loss(("ctc", {"label_layout": "TN"}))
        with pytest.raises(ValueError, match="L2Loss: axis 0 .* but the loss takes axis 1. Make it with batch_axis=0"):
            get_loss(gluon.loss.L2Loss(batch_axis=1))

    def test_lengths_and_weights(self):
        labels, net = np.array([[0, 1], [1, 2], [2, 2]]), self.net()
        lengths = np.array([5, 4, 3]), np.array([2, 1, 2])
        given = [mx.nd.array(one, dtype="float32") for one in (labels, *lengths)]
        losses = gluon.loss.CTCLoss()(net(mx.nd.array(self.X)), *given).asnumpy()
        w = np.array([1.0, 2.0, 0.0], "float32")
        for shape in ((3,), (3, 1)):
            found = mxkit.evaluate(net, [(self.X, (labels, *lengths, w.reshape(shape)))], loss="ctc")
            assert found["loss"] == pytest.approx((losses * w).mean(), rel=1e-5)
        text = r"pred_lengths: expected shape \(3,\); received \(3, 1\)"
        self.refused(DataError, text, labels, lengths[0].reshape(-1, 1), lengths[1])
        pred, label = lengths
        for which, most, wrong in (("pred", 5, (pred + [1, 0, 0], label)), ("label", 2, (pred, [0, 1, 1]))):
            text = f"{which}_lengths: expected lengths from 1 to {most}; received"
            self.refused(DataError, text, labels, *map(np.array, wrong))
        text = "labels of 1 of 3 rows need more steps than pred_lengths: .* gives such rows the loss 0"
        self.refused(LabelError, text, labels, pred - [0, 0, 1], label)


class TestPairs:
    def test_a_batch_without_a_triplet_is_told(self):
        with pytest.warns(TrapWarning, match="finds no triplet in a batch of 6 samples of 6 classes: every loss is 0"):
            mxkit.evaluate(make_net(), [(X, np.arange(6))], loss="batch_hard_triplet")
        assert traps(lambda: mxkit.evaluate(make_net(), [(X, np.arange(6) // 2)], loss="batch_hard_triplet")) == []


def test_a_batch_without_labels_and_a_net_of_several_outputs():
    text = r"L2Loss takes label, sample_weight after .* received none: batches are \(x, y\)"
    with pytest.raises(DataError, match=text):
        mxkit.evaluate(make_net(), [(X,)], loss="l2")
    net = ready(mxkit.models.Siamese(gluon.nn.Dense(2, in_units=FEATURES)))
    text = "L2Loss: the net returns 2 outputs, and this loss takes one array. Choose it in loss="
    with pytest.raises(DataError, match=text):
        mxkit.evaluate(net, [((X, X), ONE_HOT)], loss="l2")


@pytest.mark.parametrize("loss", ["softmax_ce", "l2", "label_smoothing", "ctc", "kl_div", gluon.loss.SoftmaxCELoss()])
@pytest.mark.parametrize(
    ("form", "received"),
    [
        (lambda output: {"logits": output}, "a dict"),
        (lambda output: output.asnumpy(), "a ndarray"),
        (lambda output: None, "a NoneType"),
    ],
    ids=["dict", "NumPy", "None"],
)
def test_a_net_that_returns_no_array_is_named_with_the_way(loss, form, received):
    text = f": the net returns {received}, and this loss takes one array. Choose it in loss=mxkit.losses.BatchLoss"
    for run in (mxkit.evaluate, lambda net, data, loss: list(mxkit.updates(net, data, loss=loss, trainer="sgd"))):
        with pytest.raises(DataError, match=text):
            run(Named(form), [(X, np.arange(6) % 2)], loss=loss)


def test_a_loss_with_code_of_ones_own_may_take_any_labels():
    class Own(gluon.loss.SigmoidBCELoss):
        def hybrid_forward(self, F, pred, label, sample_weight=None):
            return F.mean((pred - label.slice_axis(1, 0, 3)) ** 2, axis=1)

    assert mxkit.evaluate(make_net(), [(X, np.full((6, 9), -7.0))], loss=Own())["loss"] > 0


IMAGES = np.zeros((4, 32, 32, 3), "uint8")
IMAGES[:, 4:12, 2:14] = 255
MASKS = (IMAGES[..., 0] // 255).astype("int32")
MARKS = {
    "ssd": ("boxes", np.full((4, 1, 6), [2, 4, 14, 12, 0, 0], "float32")),
    "pixel_ce": ("mask", MASKS),
    "pose": ("points", np.full((4, 1, 3), [2, 4, 1], "float32")),
}
FLIP = mxkit.data.Augment([("flip", {"p": 1.0}), "to_tensor"])
MARKED = {name: gluon.data.ArrayDataset(IMAGES, labels) for name, (_, labels) in MARKS.items()}
ALONE = {
    "DatasetLoader": lambda dataset: mxkit.data.DatasetLoader(dataset, 2, transform=FLIP),
    "transform_first": lambda dataset: mxkit.data.DatasetLoader(dataset.transform_first(FLIP), 2),
    "random beside a function": lambda dataset: mxkit.data.DatasetLoader(
        dataset.transform(lambda image, label: (image, label)).transform_first(FLIP), 2
    ),
    "gluon's transform": lambda dataset: mxkit.data.DatasetLoader(
        dataset, 2, transform=mxkit.data.Augment([vision.RandomFlipLeftRight(), "to_tensor"])
    ),
    "gluon's DataLoader": lambda dataset: gluon.data.DataLoader(dataset.transform_first(FLIP), 2),
    "ArrayLoader": lambda dataset: mxkit.data.ArrayLoader(
        IMAGES.transpose(0, 3, 1, 2), np.stack([label for _, label in dataset]), 2, transform=FLIP.batch
    ),
    "StreamLoader": lambda dataset: mxkit.data.StreamLoader(lambda: iter(list(dataset)), 2, transform=FLIP),
}


def moved_with(dataset, augment, moves, **more):
    """The way out that the error names."""
    return mxkit.data.DatasetLoader(
        dataset.transform(lambda image, label, rng: augment.with_label(image, label, rng, moves=moves, **more)), 2
    )


@pytest.mark.parametrize("kind", ALONE)
@pytest.mark.parametrize("loss", MARKS)
def test_images_that_move_without_their_labels_are_refused(loss, kind):
    moves, _ = MARKS[loss]
    net = ready(gluon.nn.Conv2D(2, 3, padding=1, in_channels=3))
    before = weights(net)
    data = ALONE[kind](MARKED[loss])
    text = f"Flip.* moves the images, and their {moves} stay where they were.*with_label.*moves='{moves}'"
    for name, run in (("train", fit), ("train", train), ("data", mxkit.evaluate)):
        with pytest.raises(DataError, match=f"^{name}: .*{text}"):
            run(net, data, loss=loss)
    with pytest.raises(DataError, match=f"^valid: .*{text}"):
        fit(net, moved_with(MARKED[loss], FLIP, moves), loss=loss, valid=data, metrics=["mean_iou"])
    np.testing.assert_array_equal(weights(net), before)


def train(net, data, loss):
    return list(mxkit.updates(net, data, loss=loss, trainer="sgd"))


def test_the_named_ways_move_labels_and_train():
    net = ready(gluon.nn.Conv2D(2, 3, padding=1, in_channels=3))
    ((image, mask), _) = moved_with(MARKED["pixel_ce"], FLIP, "mask")
    np.testing.assert_array_equal(image.asnumpy()[:, 0], mask.asnumpy())
    ((_, boxes), _) = moved_with(MARKED["ssd"], FLIP, "boxes")
    np.testing.assert_array_equal(boxes.asnumpy()[0], [[18, 4, 30, 12, 0, 0]])
    ((_, points), _) = moved_with(MARKED["pose"], FLIP, "points", pairs=[])
    np.testing.assert_array_equal(points.asnumpy()[0], [[29, 4, 1]])
    annotated = mxkit.data.AnnotatedImages(IMAGES.__getitem__, MASKS, ["a", "b"], ["x"] * 4, moves="mask")
    for data in (
        moved_with(MARKED["pixel_ce"], FLIP, "mask"),
        mxkit.data.DatasetLoader(annotated, 2, transform=FLIP),
    ):
        fit(net, data, loss="pixel_ce")
        assert mxkit.evaluate(net, data, loss="pixel_ce")["loss"] > 0


COLOURS = mxkit.data.Augment(["colour_jitter", "to_tensor"])
CENTRE = mxkit.data.Augment([("center_crop", {"size": 16}), "to_tensor"])
SMALLER = mxkit.data.Augment([("resize", {"size": (16, 16)}), "to_tensor"])


@pytest.mark.parametrize(
    ("data", "loss"),
    [
        (lambda masks: mxkit.data.DatasetLoader(masks, 2, transform=COLOURS), "pixel_ce"),
        (lambda masks: mxkit.data.DatasetLoader(masks, 2, transform=SMALLER), "pixel_ce"),  # outputs become as large
        (lambda masks: mxkit.data.DatasetLoader(masks, 2, transform=lambda image: FLIP(image)), "pixel_ce"),
        (
            lambda masks: mxkit.data.DatasetLoader(
                masks.transform(lambda image, mask: (image, mask[8:24, 8:24])).transform_first(CENTRE), 2
            ),
            "pixel_ce",
        ),
        (lambda masks: mxkit.data.DatasetLoader(masks, 2, transform=FLIP), gluon.loss.SoftmaxCELoss(axis=1)),
    ],
    ids=["colours", "smaller images", "a function", "labels cut by a function", "another loss"],
)
def test_labels_that_may_fit_their_images_are_not_refused(data, loss):
    net = ready(gluon.nn.Conv2D(2, 3, padding=1, in_channels=3))
    assert not traps(lambda: fit(net, data(MARKED["pixel_ce"]), loss=loss))
