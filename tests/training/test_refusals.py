"""What training refuses: each call, the class of its error, and the words that must be in it; no weight changes."""

from built_nets import ready, stack
from callback_runs import BATCHES, VALID, fail
import mxkit
from mxkit.errors import (
    DataError,
    DeviceError,
    EmptyDataError,
    ForwardError,
    LabelError,
    LossShapeError,
    NotInitializedError,
    TrainingError,
    UnknownNameError,
)
from mxkit.losses import BatchLoss
from mxkit.training.callbacks import EMA, EarlyStopping, Freeze, LearningRate, Plateau, TimeLimit
from mxkit.training.history import Monitor
from mxkit.training.schedules import get_schedule, schedule
import mxnet as mx
from mxnet import gluon
import numpy as np
from oracle import FEATURES, SOFTMAX, make_batches, make_net, replicas, requests
import pytest
from sharing import text_of

pytestmark = pytest.mark.filterwarnings("ignore:the Trainer does not know", "ignore:the Trainer's learning rate is 0")
NAN, ONE_BATCH = float("nan"), make_batches([4])
X, Y = np.zeros((4, FEATURES), "float32"), np.zeros(4)
DEFAULTS = {"loss": "softmax_ce", "trainer": "sgd"}


def fit(data=BATCHES, devices="cpu", **how):
    return devices, lambda net: mxkit.fit(net, data, **{"epochs": 1, "progress": False, **DEFAULTS, **how})


def train(data=BATCHES, devices="cpu", **how):
    return devices, lambda net: list(mxkit.updates(net, data, **{**DEFAULTS, **how}))


def score(data, **how):
    return "cpu", lambda net: mxkit.evaluate(net, data, **{"loss": "softmax_ce", **how})


def made(call):
    """A call that needs no net."""
    return "cpu", lambda net: call()


def on_two_devices(optimizer="sgd", limit=None, amp=None, **how):
    def call(net):
        fit(trainer=gluon.Trainer(net.collect_params(), optimizer, **how), clip_value=limit, amp=amp)[1](net)

    return "cpu:2", call


def with_amp(net):
    trainer = gluon.Trainer(net.collect_params(), "sgd")
    trainer._amp_loss_scaler = object()  # what amp.init_trainer leaves; amp.init itself would change the process
    fit(trainer=trainer)[1](net)


def plain_block(net):
    fit(amp="float16")[1](stack(*net, kind=gluon.nn.Sequential))


def sparse(**how):
    return "cpu", lambda net: train(**how)[1](ready(gluon.nn.Embedding(9, 4, sparse_grad=True)))


def half_frozen(net):
    """T46."""
    net[1].weight.grad_req = "null"
    mxkit.updates(net, BATCHES, **DEFAULTS)


def with_callback(*callbacks, **how):
    return fit(callbacks=callbacks, metrics=["accuracy"], **how)


def with_hook(name):
    return with_callback(type("Mine", (mxkit.Callback,), {name: fail})())


def rate(*arguments, per_epoch=None, **how):
    return made(lambda: schedule(*arguments, **how).rate(0, per_epoch))


def counting(value):
    return fit(loss=BatchLoss("softmax_ce", count=lambda inputs, labels: value))


def spread():
    net = make_net()
    net[1].collect_params().reset_ctx(mx.cpu(1))
    train()[1](net)


def moved():
    net = make_net()
    trainer = gluon.Trainer(net.collect_params(), "sgd")
    net.collect_params().reset_ctx(mxkit.devices("cpu:2"))
    train(trainer=trainer)[1](net)


def frozen():
    net = make_net()
    train()[1](net)  # its arrays, recorded once, give another error of MXNet's
    mxkit.freeze(net, "*")
    train()[1](net)


def freezing_what_the_trainer_lacks(net):
    mxkit.freeze(net, "0.*")
    trainer = gluon.Trainer(net[1].collect_params(), "sgd")
    with_callback(Freeze(until="1 epoch"), trainer=trainer)[1](net)


def search(**how):
    return "cpu", lambda net: mxkit.find_learning_rate(net, BATCHES, **{**DEFAULTS, **how})


def cut(output, label):
    return mx.nd.array(((output.asnumpy() - 1) ** 2).mean(axis=1))


def mean(output, label):
    return SOFTMAX(output, label).mean()


LENGTH = "expected a length like '2 epochs' or '500 updates'"
WARMUP = f"warmup: {LENGTH}, or 0; received"
COSINE, PLATEAU = LearningRate("cosine"), Plateau("train_loss", mode="min")
OWN_RATE = ("sgd", {"lr_scheduler": mx.lr_scheduler.FactorScheduler(5)})
DATASET = gluon.data.ArrayDataset(X, Y)
TIMES_FIRST = mx.io.NDArrayIter(np.zeros((4, 4, FEATURES), "float32"), np.zeros((4, 4)), batch_size=2, layout="TNC")
UNCUT = [
    (mxkit.data.Split(X, Y), r"received Split. .*mxkit.data.ArrayLoader\("),
    ((X, Y), r"received tuple. .*: mxkit.data.ArrayLoader\(x, y, batch_size=64"),
    (((X, X), Y), "received tuple"),
    (X, r"received an array of shape \(4, 5\). Make batches"),
    (DATASET, r"received ArrayDataset.*DatasetLoader\(dataset"),
    (mxkit.data.Splits(*[mxkit.data.Split(X, Y)] * 3, []), "received Splits.* like splits.train"),
]
ROWS = [
    # callbacks
    (with_hook("on_epoch_end"), UnknownNameError, "Mine has a method 'on_epoch_end', .*: did you mean 'on_epoch'"),
    (with_hook("on_full_moon"), UnknownNameError, "give it another name, like _on_full_moon. fit calls on_fit_beg"),
    (fit(callbacks=[EarlyStopping]), TypeError, "not classes; received <class .*EarlyStopping"),
    (fit(callbacks=[mx.callback.Speedometer(8)]), TypeError, r"Speedometer.*LambdaCallback\(on_epoch=...\)"),
    (fit(callbacks=TimeLimit(5)), TypeError, r"callbacks: expected a list; received TimeLimit. Pass callbacks=\["),
    (with_callback(EarlyStopping("val_acc", "max", patience=3), valid=VALID), UnknownNameError, "'valid_accuracy'"),
    (with_callback(Plateau("val_loss", "max")), UnknownNameError, "unknown column of the history 'val_loss'"),
    (made(lambda: EarlyStopping("x", "min", patience=0)), ValueError, "patience: .* at least 1; received 0"),
    *((made(lambda one=one: TimeLimit(one)), ValueError, "TimeLimit: limit: expected") for one in (0, -1, NAN)),
    *((made(lambda one=one: EMA(one)), ValueError, "decay must be at least 0 and below 1") for one in (-0.1, 1, NAN)),
    (("cpu", lambda net: EMA().applied(net).__enter__()), ValueError, "there is no average yet"),
    (made(lambda: Monitor("a", "auto")), ValueError, "mode of 'a': expected 'min' .* 'auto'. Nothing is guessed"),
    *((made(lambda one=one: Monitor("a", "min", one)), ValueError, "min_delta of 'a'") for one in (-0.1, NAN)),
    (made(lambda: Monitor("los", "min").check(["a", "loss"])), UnknownNameError, "'los': did .* 'loss'. Known: a, l"),
    (made(lambda: Monitor("a", "min").update({"epoch": 1, "a": [1.0]})), TypeError, "not 'list'"),
    (with_callback(Freeze("feature.*", until="1 epoch")), UnknownNameError, "no parameter fits 'feature"),
    (with_callback(Freeze(until="1 epoch")), ValueError, r"no parameter that can be trained is frozen.*Freeze\('fe"),
    (with_callback(Freeze("*", until="1 epoch")), ValueError, r"Freeze: \* freezes every parameter that is trained"),
    (with_callback(Freeze("0.weight", until="1 epoch")), ValueError, "this Dense layer is frozen, its bias is not"),
    (("cpu", freezing_what_the_trainer_lacks), ValueError, "Freeze: the Trainer does not know 0.weight.*T19.*collect"),
    *(
        (made(lambda one=one: Freeze("0.*", until=one)), ValueError, f"Freeze: until: {LENGTH}")
        for one in ("0 epochs", 2, "5 minutes", None)
    ),
    *(
        (made(lambda one=one: Freeze(until="1 epoch", lr=one)), ValueError, "Freeze: lr: expected a multiplier")
        for one in (-1, "0.1", NAN, float("inf"))
    ),
    # learning rates
    (fit(callbacks=[COSINE], trainer=OWN_RATE), ValueError, "the optimizer has a FactorScheduler of its own"),
    (fit(callbacks=[PLATEAU], trainer=OWN_RATE), ValueError, "the optimizer has a FactorScheduler of its own"),
    (fit(callbacks=[COSINE], trainer="adadelta"), ValueError, "AdaDelta ignores the learning rate"),
    (fit(callbacks=[COSINE], trainer="ftrl"), ValueError, "ends at a rate of 0, with which Ftrl cannot step. .*final="),
    (fit(callbacks=[PLATEAU, COSINE]), ValueError, "Plateau has no effect beside LearningRate"),
    (made(lambda: LearningRate("cosine", updates_per_epoch=0)), ValueError, "updates_per_epoch: .* received 0"),
    (made(lambda: Plateau("a", factor=1)), ValueError, "factor: expected a number above 0 and below 1; received 1"),
    (made(lambda: Plateau("a", patience=0)), ValueError, "patience: expected a whole number"),
    (made(lambda: Plateau("a", min_rate=-1)), ValueError, "min_rate: expected a number, at least 0; received -1"),
    *(
        (made(lambda one=one: schedule("constant", warmup=one)), ValueError, WARMUP)
        for one in ("5", 5, "five epochs", "-1 epochs", "5 minutes", "5 epochs 3 updates")
    ),
    (made(lambda: schedule("step", every="2.5 updates")), ValueError, "every: updates are counted in whole numbers"),
    (made(lambda: schedule("cosin")), UnknownNameError, "unknown schedule 'cosin': did you mean 'cosine'"),
    (made(lambda: get_schedule(len)), TypeError, "received <built-in function len>"),
    (made(lambda: get_schedule(mx.lr_scheduler.CosineScheduler(9))), TypeError, "of MXNet goes to the optimizer"),
    (made(lambda: schedule("cosine", every="1 epoch")), TypeError, "does not take every. It takes base, warmup, total"),
    (made(lambda: schedule("step")), TypeError, "schedule 'step': needs every. It takes every, base, warmup, factor"),
    (made(lambda: schedule("constant", base="0.1")), ValueError, "base: expected a number above 0; received '0.1'"),
    (made(lambda: schedule("cosine", base=NAN)), ValueError, "base: expected a number above 0; received nan"),
    (made(lambda: schedule("step", every="0 epochs")), ValueError, "every: expected a length above 0; received '0 ep"),
    (rate("step", base=1, every="1 update", factor=2), ValueError, "Factor must be no more than 1"),
    (made(lambda: schedule("multi_step", at=[])), ValueError, "at: expected moments above 0"),
    (rate("step", base=1, every="2 epochs"), ValueError, r"counts epochs \('2 epochs'\), .*Pass updates_per_epoch="),
    (rate("multi_step", base=1, at=["1 epoch", "9 updates"], per_epoch=10), ValueError, "an increasing integer list"),
    (rate("cosine", base=1, warmup="1 epoch", total="9 updates", per_epoch=9), ValueError, "not end before the end of"),
    (rate("step", base=1, warmup="6 updates", every="5 updates"), ValueError, "not end before the first reduction"),
    (rate("cosine"), ValueError, "schedule 'cosine' has no base rate: pass base="),
    (made(lambda: schedule("cosine").completed(0.1).rate(0)), ValueError, "schedule 'cosine' has no end: pass total="),
    (search(start=0), ValueError, "expected 0 < start < end.*; received 0, 1.0"),
    (search(updates=9), ValueError, "updates >= 10; received .* 9$"),
    (search(diverged=1), ValueError, "diverged > 1.*; received .* 1, 100$"),
    (search(trainer="adadelta"), ValueError, "AdaDelta ignores the learning rate"),
    # arguments
    *((fit(epochs=one), ValueError, f"epochs: {LENGTH}, or a n") for one in (None, 0, True, "0 updates", "3 days")),
    *((fit(epochs=one), ValueError, "are counted in whole numbers") for one in (1.5, "2.5 updates")),
    *((fit(accumulate=one), ValueError, "^accumulate: ") for one in (0, -1, 1.5, True, "0 samples", "2.5 samples")),
    (fit(accumulate="4 epochs"), ValueError, "like '4 batches' or '256 samples', or a number of batches; received '4"),
    (on_two_devices(limit=1.0), ValueError, "clip_value: the .* kvstore, .* Make it with update_on_kvstore=False$"),
    *(  # neither of the two sends to the other (T24)
        (on_two_devices("nadam", limit=1.0, update_on_kvstore=inside), ValueError, f"{text}use one device, or another")
        for inside, text in ((True, "clip_value: .*: "), (False, "drift apart.* neither clip_value nor .*; or "))
    ),
    *(
        (fit(**{name: one}), ValueError, f"{name}: expected a number above 0, or None; received")
        for name, one in (("clip_value", -1), ("clip_norm", NAN), ("clip_norm", len), ("clip_value", "1"))
    ),
    (fit(limit_batches=0), ValueError, "limit_batches: expected a whole number, at least 1; received 0"),
    (fit(check_finite="halt"), ValueError, "check_finite is True, False or 'stop'; received 'halt'"),
    (fit(progress="loud"), ValueError, "fit: progress is True, False or 'verbose'; received 'loud'"),
    (fit(resume=True), ValueError, "resume=True needs checkpoint=..., the directory to resume from"),
    (fit(resume="yes"), ValueError, "resume is True, False or 'auto'; received 'yes'"),
    (on_two_devices(amp="float16", update_on_kvstore=True), ValueError, "amp='float16': .*update_on_kvstore=False"),
    (("cpu", with_amp), ValueError, r"passed to amp.init_trainer.*pass amp='float16'"),
    *(
        (sparse(**how), ValueError, rf"sparse gradients, which MXNet cannot use for {why}\. .*sparse_grad=False")
        for how, why in (
            ({"accumulate": 2}, "accumulation"),
            ({"accumulate": "4 samples"}, "accumulation"),
            ({"clip_norm": 1.0}, "clipping"),
            ({"accumulate": 2, "clip_value": 1.0}, "accumulation and clipping"),
        )
    ),
    (("cpu", half_frozen), ValueError, "^1: the weight of this Dense layer is frozen, its bias is not. On the CPU"),
    (("cpu", plain_block), TypeError, "amp='float16' rewrites the graph of a HybridBlock; received Sequential"),
    (fit(amp="half"), ValueError, "amp: expected 'float16' or 'bfloat16', or None; received 'half'"),
    (fit(loss=None), ValueError, r"pass loss=..., or loss=mxkit.losses.BatchLoss\(forward=...\) for a net"),
    (made(lambda: BatchLoss("l2", forward=len)), ValueError, r"forward=function\(net, inputs, labels\); received both"),
    (made(lambda: BatchLoss(count=len)), ValueError, "received neither"),
    (score([]), EmptyDataError, "data gave no batch in epoch 1: it is empty"),
    (score(VALID, loss=None), ValueError, r"evaluate: nothing to compute; pass loss=..., metrics=\[...\] or both"),
    (score([], metrics=["accuracy", mx.metric.Accuracy()]), ValueError, "names must differ"),
    (score([], metrics=None), TypeError, r"a list, like .*, or \(\) for none; received None"),
    (train([], metrics=["accuracy"]), TypeError, r"list of metrics, like \[mxkit.met"),
    # names
    (train([], loss="sotfmax_ce"), UnknownNameError, "unknown loss 'sotfmax_ce': did you mean 'softmax_ce'"),
    (train([], trainer="adm"), UnknownNameError, "unknown optimizer 'adm': did you mean 'adam'"),
    (train(trainer="adamw"), UnknownNameError, r"did you mean 'adam' \(its wd is added to the gradient"),
    (made(lambda: mxkit.models.get_model("resnet18_v2")), UnknownNameError, "did you mean 'zoo:resnet18_v2'"),
    (made(lambda: mxkit.models.get_model("zoo:resnet18v2")), UnknownNameError, "did you mean 'zoo:resnet18_v2'"),
    (made(lambda: mxkit.models.get_model("zo:resnet18_v2")), UnknownNameError, "unknown source of models 'zo'"),
    # data
    (train([]), EmptyDataError, "train gave no batch in epoch 1: it is empty"),
    (fit(valid=[]), EmptyDataError, "valid gave no batch in epoch 1"),
    (fit(iter(BATCHES), epochs="4 updates"), EmptyDataError, "it is empty or used up"),
    (fit(zip(BATCHES), epochs=3), DataError, r"train is a zip, .* not in 3 epochs.*: batches\(\)\), a list, or a load"),
    (fit(valid=zip(BATCHES), epochs=3), DataError, "valid is a zip, which can be read only once"),
    (train(5), DataError, r"train: expected an iterable of batches \(x, y\).* received int"),
    (train([("x", "y")]), DataError, "a batch holds NDArray or NumPy arrays; received str"),
    (train([(X, Y[:3])]), DataError, "axis 0 of every array of a batch is the sample axis; received shapes"),
    (train([(X, Y, Y)]), DataError, r"a batch is \(x, y\), or tuples of arrays in either place; received 3 items"),
    (fit([BATCHES[0] * 2]), DataError, r"4 items. Group them: .*lambda: \(\(\(a, b\), y\) for a, b"),
    *((rung(data), DataError, "train: .*" + text) for data, text in UNCUT for rung in (fit, train)),
    (fit(TIMES_FIRST), DataError, "train: NDArrayIter has the layout 'TNC', with samples on axis 1"),
    (train(epoch=1, skip=(21, 21)), DataError, "train gave 3 batches in epoch 2, but the stopped run had read 21"),
    (score([(X, np.array([0, 1, 2, 7]))]), LabelError, "whole numbers from 0 to 2, .* received 7 in 1 of"),
    (score(mxkit.data.ArrayLoader(X, np.array([0, 1, 2, 7]), 2)), LabelError, "from 0 to 2, .* received 7 in 1 of"),
    (
        score(VALID, loss=BatchLoss("softmax_ce", count=lambda x, y: 0)),
        DataError,
        "the count of all batches of data is 0",
    ),
    *((counting(one), DataError, "count must give a number of at least 0") for one in (-1, NAN, float("inf"), None)),
    (counting(0), DataError, "the window of update 1 has the count 0: none of its 8 samples counts"),
    # losses
    (score(ONE_BATCH, loss=mean), LossShapeError, "It is a mean or a sum already"),
    (score(ONE_BATCH, loss=lambda output, label: 5.0), LossShapeError, "the loss must return the losses as an NDArray"),
    (fit(loss=BatchLoss(forward=lambda net, x, y: None)), LossShapeError, "forward must return the losses .*None"),
    (train(loss=cut), TrainingError, "does not depend on the net's parameters by recorded operators. NumPy"),
    # nets, devices, Trainers
    *(
        (("cpu", lambda net, call=call: call(gluon.nn.HybridLambda("identity"))), ValueError, "has no parameters")
        for call in (fit()[1], train(trainer=("adam", {}))[1], search(trainer=mx.optimizer.SGD())[1])
    ),
    *(
        (("cpu", lambda net, call=call: call(mxkit.models.mlp()[1:])), NotInitializedError, "parameter '0.weight' has")
        for call in (train()[1], fit()[1], score(VALID)[1], lambda net: mxkit.predict(net, BATCHES))
    ),
    (made(spread), DeviceError, r"parameter '0.weight' lives on \[cpu\(0\)\], '1.weight' on \[cpu\(1\)\]"),
    (made(moved), DeviceError, r"the Trainer was made for \[cpu\(0\)\], the net now lives on \[cpu\(0\), cpu"),
    (made(frozen), TrainingError, r"all parameters of the net are frozen: .* Call mxkit.unfreeze\(net\)"),
    (on_two_devices(kvstore=None), ValueError, "kvstore=None on 2 devices .* its own copy"),
    *(
        (on_two_devices(one, update_on_kvstore=False), ValueError, "lets replicas drift apart")
        for one in ("lars", "lbsgd", "nadam", "sgld")
    ),
    (train(trainer=[gluon.Trainer(make_net().collect_params(), "sgd")] * 2), TypeError, "expected one Trainer, a name"),
    (train(trainer=mx.optimizer.Adam), TypeError, r"expected one Trainer, a name, .*received <class .*Adam"),
    (fit(valid=[(np.ones((4, 9)), Y)]), ForwardError, r"^valid, batch x \(4, 9\) float64, .*: '0' \(Dense\) is built"),
    (("cpu", lambda net: mxkit.predict(net, np.ones((2, 9)))), ForwardError, r"got shape \(2, 9\)[^[]*$"),
]


@pytest.mark.parametrize(("call", "error", "words"), ROWS, ids=[row[-1] for row in ROWS])
def test_refused_before_a_weight_changes(call, error, words):
    devices, function = call
    net = make_net(devices)
    before = replicas(net)[0]
    with pytest.raises(error, match=words):
        function(net)
    if not any(later in words for later in ("valid, batch", "used up")):
        np.testing.assert_array_equal(replicas(net)[0], before)
    assert set(requests(net).values()) <= {"write", "null"}


@pytest.mark.parametrize(
    "wrong",
    [
        lambda big: fit([], epochs=big),
        lambda big: fit([], trainer=big.tolist()),
        lambda big: fit([], callbacks=[big]),
        lambda big: fit(big),
        lambda big: made(lambda: LearningRate(big.tolist())),
        lambda big: made(lambda: mxkit.seed_all(big)),
        lambda big: ("cpu", lambda net: mxkit.initialize(net, big.tolist(), force=True)),
        lambda big: made(lambda: mxkit.devices(big.tolist())),
    ],
)
def test_no_message_prints_a_whole_array(wrong):
    assert len(text_of((ValueError, TypeError), wrong(np.arange(5000.0))[1], make_net())) < 500
