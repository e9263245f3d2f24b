"""A program: what workers may not do in different ways, and what one of them may do alone."""

from pathlib import Path
import sys
import warnings

from joint_cases import batches, data, fitted, loader, made, mlp
from joint_runs import write
import mxkit
from mxkit.training import callbacks as hooks
from mxkit.training.rate_search import find_learning_rate
import mxnet as mx
from mxnet import gluon
from mxnet.gluon import nn
import numpy as np

CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def rank():
    return mxkit.distributed.rank()


def ready():
    net = made(mlp())
    net(mx.nd.zeros((1, 6)))
    return net


@case
def other_samples():
    x, y = data()
    return fitted(train=mxkit.data.ArrayLoader(x + rank(), y, 8))


@case
def cut_up_by_rank():
    x, y = data()
    return fitted(train=mxkit.data.ArrayLoader(x[rank() :: 2], y[rank() :: 2], 8))


@case
def other_batch_size():
    return fitted(train=loader(50, 8 + rank()))


@case
def other_kind_of_data():
    return fitted(train=loader() if rank() else batches())


@case
def lists_of_ones_own():
    return fitted(train=batches()[rank() :: 2] + batches()[:1] * rank())


@case
def other_first_batch():
    return fitted(train=lambda: iter(batches()[rank() :]))


@case
def other_order():
    def shuffled():
        parts = batches()
        return iter([parts[i] for i in np.random.RandomState(8 + rank()).permutation(len(parts))])

    return fitted(train=shuffled)


@case
def other_validation():
    return fitted(valid=lambda: iter(batches()[rank() :]))


@case
def no_validation():
    return fitted(valid=loader() if rank() else None)


@case
def other_net():
    return fitted(made(mxkit.models.mlp(3, hidden=[8 + rank()])))


@case
def other_optimizer():
    return fitted(trainer=("sgd", {"learning_rate": 0.1 + rank()}))


@case
def other_seed():
    return fitted(seed=rank())


@case
def other_length():
    return fitted(epochs=2 + rank())


@case
def other_metrics():
    return fitted(metrics=["accuracy", "mcc"][rank() :])


@case
def other_callbacks():
    return fitted(callbacks=[hooks.EMA()] * rank())


@case
def other_rate():
    def change(state, update):
        state.trainer.set_learning_rate(0.1 + rank())

    return fitted(callbacks=[hooks.LambdaCallback(on_update=change)])


@case
def frozen_on_one():
    def freeze(state, update):
        if rank():
            state.trainer._params[0].grad_req = "null"

    return fitted(callbacks=[hooks.LambdaCallback(on_update=freeze)])


@case
def changed_on_one():
    def change(state, row):
        if rank():
            state.trainer._params[0].set_data(state.trainer._params[0].data() + 1)

    return fitted(callbacks=[hooks.LambdaCallback(on_epoch=change)])


@case
def metric_without_a_sum():
    return fitted(metrics=[mx.metric.F1(name="theirs", average="micro")])


@case
def sparse_gradients():
    net = nn.HybridSequential()
    net.add(nn.Embedding(5, 3, sparse_grad=True), nn.Dense(3))
    train = mxkit.data.ArrayLoader(np.arange(20) % 5, np.arange(20) % 3, 4)
    return fitted(made(net), train)


@case
def trainer_of_gluons_own_path():
    net = ready()
    return fitted(net, trainer=gluon.Trainer(net.collect_params(), "sgd", kvstore="dist_sync"))


@case
def trainer_that_steps_on_its_kvstore():
    net = ready()
    return fitted(net, trainer=gluon.Trainer(net.collect_params(), "sgd", update_on_kvstore=True))


@case
def trainer_that_compresses():
    net = ready()
    return fitted(net, trainer=gluon.Trainer(net.collect_params(), "sgd", compression_params={"type": "2bit"}))


@case
def trainer_of_dist_async():
    net = ready()
    return fitted(net, trainer=gluon.Trainer(net.collect_params(), "sgd", kvstore="dist_async"))


@case
def other_kvstore():
    return fitted(kvstore=["dist_sync", "horovod"][rank()])


@case
def noise():
    return fitted(trainer="sgld")


@case
def too_few_for_drop_last():
    return fitted(train=loader(9, 8, drop_last=True))


@case
def loop_over_other_nets():
    net = ready()
    net.collect_params().initialize(mx.init.Constant(rank()), force_reinit=True)
    return list(mxkit.updates(net, loader(), loss="softmax_ce", trainer="sgd"))


@case
def not_finite_on_one():
    """The workers read numbers at different updates."""
    x, y = data(400)
    x[205] = np.nan  # of one worker's share

    def read(state, update):
        if rank() and update.step == 60:
            state.running.settle()

    return fitted(train=mxkit.data.ArrayLoader(x, y, 2), callbacks=[hooks.LambdaCallback(on_update=read)])


@case
def stops_where_it_is_not_finite():
    x, y = data(400)
    x[205] = np.nan
    result = fitted(train=mxkit.data.ArrayLoader(x, y, 2), check_finite="stop")
    return {"stopped": result["stopped"]}


@case
def stop_by_one():
    def stop(state, update):
        if rank() and update.step == 3:
            state.stop("enough")

    result = fitted(callbacks=[hooks.LambdaCallback(on_update=stop)])
    return {"updates": [row["updates"] for row in result["rows"]], "stopped": result["stopped"]}


@case
def stop_before_the_first_update():
    def stop(state):
        if rank():
            state.stop("nothing to do")

    return {"rows": len(fitted(callbacks=[hooks.LambdaCallback(on_fit_begin=stop)])["rows"])}


@case
def time_limit():
    seconds = iter(range(1000))
    clock = (lambda: 2 * next(seconds)) if rank() else (lambda: 0)
    result = fitted(callbacks=[hooks.TimeLimit(11, clock=clock)], epochs=9)
    return {"updates": result["rows"][-1]["updates"], "stopped": result["stopped"]}


@case
def logs():
    log = hooks.CSVLog(FOLDER / f"log-{rank()}.csv")
    fitted(callbacks=[log, hooks.TensorBoardLog(FOLDER / f"board-{rank()}")], progress=True)
    return {"files": sorted(path.name for path in FOLDER.glob(f"*-{rank()}*"))}


@case
def dropout():
    """Other masks on each worker, the same in each run."""
    masks = []

    class Noted(gluon.Block):
        def forward(self, x):
            masks.append((x.asnumpy() == 0).tolist())
            return x

    def run():
        net = nn.Sequential()
        net.add(nn.Dropout(0.5), Noted(), nn.Dense(3))
        return fitted(made(net), loader(400, 4), epochs=1, seed=3)

    result, first = run(), masks[1:]
    masks.clear()
    again = run()
    same = first == masks[1:]
    return {"masks": first, "again": same, "result": result, "second": again}


@case
def alone():
    """What one worker calls by itself needs no other."""
    if not rank():
        return {}
    net, x = ready(), data()[0]
    mxkit.evaluate(net, loader(), loss="softmax_ce", metrics=["accuracy"])
    mxkit.predict(net, x)
    mxkit.extract(net, ["1"], x)
    find_learning_rate(net, loader(), loss="softmax_ce", trainer="sgd", updates=12)
    mxkit.profiling.profile(net, loader(400), loss="softmax_ce", trainer="sgd", updates=5)
    with_norm = nn.HybridSequential()
    with_norm.add(nn.BatchNorm(in_channels=6), nn.Dense(3))
    return {"recalibrated": mxkit.training.recalibrate_batch_norm(made(with_norm), loader())}


@case
def after_all_that():
    return fitted()


def main(folder, *names):
    global FOLDER
    FOLDER = Path(folder)
    mxkit.distributed.initialize()
    found = {}
    for name, function in CASES.items():
        if not names or name in names:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    found[name] = function()
            except Exception as error:  # of any type: it is the result
                found[name] = f"{type(error).__name__}: {error}"
            if not names:
                mxkit.distributed.barrier(name)
    write(folder, rank(), found)


if __name__ == "__main__":
    main(*sys.argv[1:])
