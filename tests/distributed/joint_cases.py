"""A program: many trainings, by several workers together or by one process over the joint batches."""

import os
from pathlib import Path
import sys
import warnings

from joint_runs import write
import mxkit
from mxkit.distributed.group import current
from mxkit.training import callbacks as hooks
import mxnet as mx
from mxnet import gluon
from mxnet.gluon import nn
import numpy as np

WORKERS = 2  # set by main
SHAPES = [(7,), (999,), (50, 20), (1001,), (3, 1111), (2, 2)]
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def size():
    return mxkit.distributed.size()


def batch(number=1):
    """batch_size that makes the joint batch `number` samples for each of WORKERS."""
    return number * WORKERS // size()


turns = batch  # accumulate of one process whose updates take as many whole batches as those of all workers


def data(samples=50, features=6, classes=3):
    random = np.random.RandomState(5)
    return random.randn(samples, features).astype("float32"), random.randint(0, classes, samples)


def mlp(**arguments):
    return mxkit.models.mlp(3, hidden=[8], **arguments)


def net_of(*layers):  # `built_nets` is not on the path of a worker
    net = nn.HybridSequential()
    net.add(*layers)
    return net


def made(net, devices=None):
    mxkit.seed_all(7)
    mxkit.initialize(net, devices=devices or mx.cpu())
    return net


def loader(samples=50, per_worker=8, x=None, y=None, **arguments):
    """Some samples, with other inputs or labels."""
    inputs, labels = data(samples)
    pair = inputs if x is None else x, labels if y is None else y
    return mxkit.data.ArrayLoader(*pair, batch(per_worker), **{"shuffle": True, "seed": 3, **arguments})


def fitted(net=None, train=None, valid=None, keep=(), **arguments):
    """Parameters and history of a training."""
    net = made(mlp()) if net is None else net
    settings = {"loss": "softmax_ce", "trainer": ("sgd", {"learning_rate": 0.1}), "epochs": 2, "progress": False}
    kvstore = arguments.pop("kvstore", os.environ.get("CASES_KVSTORE", "dist_sync"))
    mxkit.distributed.set_kvstore(kvstore, compression=arguments.pop("compression", None))
    history = mxkit.fit(net, loader() if train is None else train, valid=valid, **{**settings, **arguments})
    rows = [{k: v for k, v in row.items() if k not in ("seconds", "samples_per_second")} for row in history]
    values = {path: one.data(one.list_ctx()[0]).asnumpy() for path, one in net._collect_params_with_prefix().items()}
    return {"parameters": values, "rows": rows, "stopped": history.stopped, **dict(keep)}


@case
def convolutions():
    """Enough channels that oneDNN keeps gradients in an order of its own."""
    net = net_of(
        nn.Conv2D(32, 3, in_channels=16, padding=1), nn.Conv2D(32, 3, in_channels=32), nn.Dense(3, in_units=1152)
    )
    random = np.random.RandomState(1)
    x, y = random.randn(24, 16, 8, 8).astype("float32"), np.arange(24) % 3
    return fitted(made(net), mxkit.data.ArrayLoader(x, y, batch(4)), trainer=("sgd", {"learning_rate": 0.01}))


@case
def pieces():
    """Long arrays go to the servers in pieces; on one machine only where this asks for it."""
    group, sums = current(), {}
    ranks = range(WORKERS) if group is None else [group.rank]
    if group is not None:
        assert group.piece == sys.maxsize
        group.piece = 1000
    arrays = [[mx.nd.zeros(shape, ctx=mx.cpu(device)) for device in (0, 1)] for shape in SHAPES]
    for update in range(3):
        for replicas in arrays:
            for device, array in enumerate(replicas):
                values = mx.nd.arange(array.size).reshape(array.shape) + 10 * update + device
                array[:] = mx.nd.add_n(*(values + 100 * rank for rank in ranks))
        if group is None:
            for replicas in arrays:
                replicas[0][:] += replicas[1].as_in_context(mx.cpu(0))
                replicas[1][:] = replicas[0].as_in_context(mx.cpu(1))
        else:
            group.add_up("pieces", arrays)
        for number, replicas in enumerate(arrays):
            sums.update({f"{update} {number} {array.ctx}": array.asnumpy() for array in replicas})
    if group is not None:
        group.piece = sys.maxsize
    return {"parameters": sums, "rows": []}


@case
def shared_parameters():
    """One layer twice, and another with the same parameters; a Trainer as Gluon makes it."""
    first = nn.Dense(6, in_units=6)
    norm = nn.BatchNorm(in_channels=6, use_global_stats=True)
    net = net_of(first, norm, first, norm, nn.Dense(6, in_units=6, params=first.params), nn.Dense(3, in_units=6))
    made(net)
    norm.running_mean.set_data(mx.nd.ones(6) * 0.25)
    return fitted(net, trainer=gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.05}))


@case
def batch_norm():
    # a bias before BatchNorm has no gradient but noise, which adam makes as large as any other
    net = net_of(nn.Dense(8, use_bias=False), nn.BatchNorm(), nn.Activation("relu"), nn.Dense(3))
    made(net, [mx.cpu(i) for i in range(WORKERS // size())])
    net.hybridize()
    return fitted(net, loader(64), trainer="adam")


@case
def statistics_of_batch_norm():
    """After one update the mean of the shares' means is that of the batch."""
    net = net_of(nn.BatchNorm(in_channels=6), nn.Dense(3))
    result = fitted(made(net), loader(16 * WORKERS), epochs=1, limit_batches=1)
    return {"parameters": {"mean": result["parameters"]["0.running_mean"]}, "rows": []}


@case
def half_precision():
    class Scale(gluon.HybridBlock):  # no product of matrices, which MXNet does not have in float16 on a CPU
        def __init__(self):
            super().__init__()
            self.scale = self.params.get("scale", shape=(1, 6))

        def hybrid_forward(self, F, x, scale):  # noqa: N803
            return F.broadcast_mul(x, scale)

    x, _ = data()
    x[19] *= 1e18  # the last sample of one worker's share overflows
    train = mxkit.data.ArrayLoader(x, x * 2, batch(8))
    return fitted(made(Scale()), train, loss="l2", amp="float16", epochs=3)


@case
def numpy_net():
    mx.npx.set_np()
    try:
        net = net_of(nn.Dense(8, activation="tanh"), nn.Dense(3))
        made(net).hybridize()
        return fitted(net, trainer="adam", accumulate=2, metrics=["accuracy"], valid=loader(30))
    finally:
        mx.npx.reset_np()


CLASSES = [
    "accuracy", "confusion", "cross-entropy", ("f1", {"average": "macro"}), "mcc", "perplexity",
    ("precision", {"average": "none"}), ("recall", {"average": "macro"}), ("top_k", {"k": 2}),
]  # fmt: skip


@case
def metrics_of_classes():
    own = mxkit.metrics.Mean(lambda labels, output: output.max(axis=1), name="highest")
    theirs = [mx.metric.TopKAccuracy(2, name="theirs"), mx.metric.Accuracy(name="right")]
    return fitted(metrics=[*CLASSES, own, *theirs], valid=loader(31, shuffle=False))


@case
def processes():
    """Samples are augmented by (seed, epoch, sample), in whatever process and worker."""
    with dataset_loader(workers="process:1") as train:
        return fitted(train=train, seed=4)


def dataset_loader(**options):
    dataset = gluon.data.ArrayDataset(*data())
    return mxkit.data.DatasetLoader(dataset, batch(8), shuffle=True, seed=3, transform=noisy, **options)


def noisy(x, rng):
    return x + rng.standard_normal(x.shape).astype("float32")


@case
def pairs():
    class Twins(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            self.one = nn.Dense(2, in_units=6)

        def hybrid_forward(self, F, a, b):  # noqa: N803
            return ((self.one(a) - self.one(b)) ** 2).sum(axis=1)

    train = mxkit.data.PairLoader(*data(), batch(8), shuffle=True, seed=3)
    return fitted(made(Twins()), train, loss="l2", trainer=("sgd", {"learning_rate": 0.001}))


@case
def buckets():
    random = np.random.RandomState(0)
    texts = [random.randn(length, 6).astype("float32") for length in random.randint(2, 9, 40)]
    train = mxkit.data.BucketLoader(texts, np.arange(40) % 3, 4, buckets=3, shuffle=True, seed=2)

    class Mean(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            self.out = nn.Dense(3, in_units=6)

        def hybrid_forward(self, F, x, lengths):  # noqa: N803
            return self.out(x.sum(axis=1))

    return fitted(made(Mean()), train, accumulate=turns(), metrics=["accuracy"], valid=train)


def batches(number=7):
    x, y = data()
    cuts = np.random.RandomState(2).randint(1, 9, number).cumsum()
    parts = list(zip(np.split(x, cuts)[:-1], np.split(y, cuts)[:-1]))
    return [(mx.nd.array(a), mx.nd.array(b)) for a, b in parts if len(a)]


@case
def iterator_in_c():
    """Its batches lie in memory that the iterator fills again."""
    x, _ = data()
    path = FOLDER / f"numbers-{mxkit.distributed.rank()}.csv"
    np.savetxt(path, x, delimiter=",")
    train = mx.io.CSVIter(data_csv=str(path), data_shape=(6,), batch_size=5)
    net = made(mxkit.models.mlp(1, hidden=[4]))
    return fitted(net, train, loss=mxkit.losses.BatchLoss(forward=of_itself), accumulate=turns(), epochs=3)


def of_itself(net, inputs, labels):
    x = inputs[0]
    output = net(x)
    return ((output - x[:, :1]) ** 2).mean(axis=1)


@case
def callbacks():
    own = [
        hooks.EarlyStopping("valid_loss", "min", patience=2, restore_best=True),
        hooks.EMA(0.9),
        hooks.Plateau("train_loss", "min", patience=1, min_delta=0.1),
        hooks.Freeze("1.*", until="2 epochs"),
    ]
    return fitted(callbacks=own, epochs=7, valid=loader(30), trainer=("sgd", {"learning_rate": 0.9}))


@case
def loop_of_ones_own():
    net = made(mlp())
    net(mx.nd.zeros((1, 6)))
    stream = mxkit.updates(net, loader(45), loss="softmax_ce", trainer="adam", accumulate=2, epoch=0)
    losses = [[update.step, update.samples, update.loss] for update in stream]
    values = {path: one.data().asnumpy() for path, one in net._collect_params_with_prefix().items()}
    return {"parameters": values, "rows": [{"losses": losses}]}


@case
def two_accumulators():
    """Two nets of the same shapes in turn, as a generator and a discriminator."""
    x, y = (mx.nd.array(part) for part in data(48))
    nets = [made(mxkit.models.mlp(3, hidden=[8])) for _ in range(2)]
    for net in nets:
        net(x[:1])
    trainers = [gluon.Trainer(net.collect_params(), "adam", update_on_kvstore=False) for net in nets]
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    rank = mxkit.distributed.rank()
    rows = []
    with mxkit.Accumulator(trainers[0]) as first, mxkit.Accumulator(trainers[1]) as second:
        for begin in range(0, 48, 12):
            part = slice(begin + 12 // size() * rank, begin + 12 // size() * (rank + 1))
            for net, accumulator in zip(nets, (first, second)):
                with mx.autograd.record():
                    losses = loss(net(x[part]), y[part])
                accumulator.backward(losses)
                rows.append({"loss": accumulator.step().loss})
    values = {f"{i}{path}": one.data().asnumpy() for i, net in enumerate(nets)
              for path, one in net._collect_params_with_prefix().items()}  # fmt: skip
    return {"parameters": values, "rows": rows}


X, Y = data()
LABELS = (np.random.RandomState(1).rand(50, 3) > 0.5).astype("float32")
PICTURES = (X.reshape(50, 1, 2, 3) * 40 + 128).clip(0, 255).astype("uint8")
WEIGHTS = np.linspace(0, 2, 50).astype("float32")
NUMBERS = ["mae", "mse", "rmse", "r2", "pearsonr"]


def in_turn(train, **arguments):
    """Whole batches in turn."""
    return fitted(train=train, accumulate=turns(), **arguments)


def with_valid(train, metrics, **arguments):
    return fitted(train=train, valid=train, metrics=metrics, **arguments)


CASES.update(
    sample_weights=lambda: fitted(train=loader(y=(Y, WEIGHTS)), metrics=["accuracy"]),
    own_counts=lambda: fitted(
        loss=mxkit.losses.BatchLoss("softmax_ce", count=lambda x, y: float((y[0].asnumpy() + 1).sum())),
        valid=loader(30),
        metrics=["accuracy"],
    ),
    metrics_of_labels=lambda: with_valid(
        loader(y=LABELS, shuffle=False), ["subset_accuracy", ("f1", {"average": "micro"})], loss="sigmoid_bce"
    ),
    metrics_of_numbers=lambda: with_valid(
        loader(y=X[:, :1] * 2 + 1, shuffle=False), NUMBERS, net=made(mxkit.models.mlp(1, hidden=[4])), loss="l2"
    ),
    # shares of a batch draw other numbers than the whole; the function is such that this changes nothing
    transform=lambda: fitted(train=loader(transform=lambda x, y, rng: (x * 2, y))),
    bytes_as_inputs=lambda: fitted(train=loader(x=PICTURES)),
    dataset_in_this_process=lambda: fitted(train=dataset_loader(), seed=4, valid=gluon.data.ArrayDataset(*data(20))),
    stream=lambda: in_turn(
        mxkit.data.StreamLoader(lambda: zip(X, Y), 8, shuffle_buffer=10, seed=3), metrics=["accuracy"]
    ),
    gluon_loader=lambda: with_valid(
        gluon.data.DataLoader(gluon.data.ArrayDataset(X, Y), 8, shuffle=True), [], accumulate=turns(), seed=11
    ),
    iterator=lambda: in_turn(mx.io.NDArrayIter(X, Y, 8, shuffle=True), valid=mx.io.NDArrayIter(*data(21), 8), seed=1),
    optimizer_momentum=lambda: fitted(trainer=("sgd", {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01})),
    optimizer_adam=lambda: fitted(trainer=("adam", {"learning_rate": 0.01})),
    optimizer_nadam=lambda: fitted(trainer="nadam"),
    optimizer_lamb=lambda: fitted(trainer=("lamb", {"learning_rate": 0.01})),
    optimizer_lars=lambda: fitted(trainer=("lars", {"learning_rate": 0.1})),
    tail_of_one=lambda: fitted(
        train=loader(2 * 8 * WORKERS + 1), trainer="adam", metrics=["accuracy"], valid=loader(13)
    ),
    fewer_samples_than_workers=lambda: fitted(train=loader(1), epochs=3, metrics=["accuracy"], valid=loader(1)),
    one_batch=lambda: fitted(train=loader(5, 50), epochs=3),
    no_deferred_shapes_without_a_sample=lambda: fitted(made(mlp()), loader(1), epochs=1, valid=data(300)),
    drop_last=lambda: fitted(train=loader(drop_last=True)),
    deferred_shapes=lambda: fitted(made(net_of(nn.Dense(4), nn.Dense(3)))),
    schedule=lambda: fitted(callbacks=[hooks.LearningRate(("cosine", {"warmup": "3 updates"}))], epochs=3),
    schedule_of_batches_in_turn=lambda: fitted(
        train=batches(), callbacks=[hooks.LearningRate(("cosine", {"warmup": "1 epoch"}))], epochs=3, accumulate=turns()
    ),
    accumulate=lambda: fitted(train=loader(61), accumulate=2, trainer="adam"),
    accumulate_samples=lambda: fitted(train=loader(101), accumulate=f"{24 * WORKERS // size()} samples"),
    clip_norm=lambda: fitted(clip_norm=0.1, accumulate=2),
    clip_value=lambda: fitted(clip_value=0.01),
    number_of_updates=lambda: fitted(epochs="11 updates", trainer="adam", metrics=["accuracy"], valid=loader(30)),
    limit_batches=lambda: fitted(limit_batches=2, epochs=3, metrics=["accuracy"], valid=loader(70), validate_every=2),
    two_devices=lambda: fitted(
        made(mlp(), [mx.cpu(0), mx.cpu(1)]), trainer="adam", accumulate=2, clip_norm=1.0, metrics=["accuracy"]
    ),
    metrics_of_classes_in_turn=lambda: in_turn(batches(), valid=batches(3), metrics=CLASSES),
    list_of_batches=lambda: in_turn(batches(), trainer="adam", valid=batches(5), metrics=["accuracy"]),
    list_accumulated=lambda: fitted(train=batches(), accumulate=turns(2), limit_batches=turns(4) if size() == 1 else 4),
    one_batch_in_a_list=lambda: in_turn(batches(1), epochs=3),
    function_of_batches=lambda: in_turn(lambda: iter(batches()), epochs="5 updates"),
)


def main(folder, workers, *names):
    global WORKERS, FOLDER
    WORKERS, FOLDER = int(workers), Path(folder)
    mxkit.distributed.initialize()
    found = {}
    for name, function in CASES.items():
        if not names or any(name.startswith(part) for part in names):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found[name] = function()
    write(folder, mxkit.distributed.rank(), found)


if __name__ == "__main__":
    main(*sys.argv[1:])
