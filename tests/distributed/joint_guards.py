"""A program: what workers may not do in different ways, and what one of them may do alone."""

from pathlib import Path
import sys
import warnings

from joint_cases import batches, data, fitted, loader, made, mlp, net_of
from joint_runs import write
import mxkit
from mxkit.training import callbacks as hooks
from mxkit.training.rehearsal import find_learning_rate
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


def ready(devices=None):
    net = made(mlp(), devices)
    net(mx.nd.zeros((1, 6)))
    return net


def arrays(change):
    return fitted(train=mxkit.data.ArrayLoader(*map(change, data()), 8))


@case
def other_order():
    def shuffled():
        parts = batches()
        return iter([parts[i] for i in np.random.RandomState(8 + rank()).permutation(len(parts))])

    return fitted(train=shuffled)


def calling(**functions):
    return fitted(callbacks=[hooks.LambdaCallback(**functions)])


def freeze_on_one(state, update):
    if rank():
        state.trainer._params[0].grad_req = "null"


def change_on_one(state, row):
    if rank():
        state.trainer._params[0].set_data(state.trainer._params[0].data() + 1)


@case
def sparse_gradients():
    net = net_of(nn.Embedding(5, 3, sparse_grad=True), nn.Dense(3))
    train = mxkit.data.ArrayLoader(np.arange(20) % 5, np.arange(20) % 3, 4)
    return fitted(made(net), train)


def with_trainer(devices=None, **options):
    net = ready(devices)
    return fitted(net, trainer=gluon.Trainer(net.collect_params(), "sgd", **options))


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

    result = calling(on_update=stop)
    return {"updates": [row["updates"] for row in result["rows"]], "stopped": result["stopped"]}


@case
def stop_before_the_first_update():
    def stop(state):
        if rank():
            state.stop("nothing to do")

    return {"rows": len(calling(on_fit_begin=stop)["rows"])}


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
    with_norm = net_of(nn.BatchNorm(in_channels=6), nn.Dense(3))
    return {"recalibrated": mxkit.training.recalibrate_batch_norm(made(with_norm), loader())}


CASES.update(
    other_samples=lambda: arrays(lambda values: values + rank()),
    cut_up_by_rank=lambda: arrays(lambda values: values[rank() :: 2]),
    other_batch_size=lambda: fitted(train=loader(50, 8 + rank())),
    other_kind_of_data=lambda: fitted(train=loader() if rank() else batches()),
    lists_of_ones_own=lambda: fitted(train=batches()[rank() :: 2] + batches()[:1] * rank()),
    other_first_batch=lambda: fitted(train=lambda: iter(batches()[rank() :])),
    other_validation=lambda: fitted(valid=lambda: iter(batches()[rank() :])),
    no_validation=lambda: fitted(valid=loader() if rank() else None),
    other_net=lambda: fitted(made(mxkit.models.mlp(3, hidden=[8 + rank()]))),
    other_optimizer=lambda: fitted(trainer=("sgd", {"learning_rate": 0.1 + rank()})),
    other_seed=lambda: fitted(seed=rank()),
    other_length=lambda: fitted(epochs=2 + rank()),
    other_metrics=lambda: fitted(metrics=["accuracy", "mcc"][rank() :]),
    other_rate=lambda: calling(on_update=lambda state, _: state.trainer.set_learning_rate(0.1 + rank())),
    frozen_on_one=lambda: calling(on_update=freeze_on_one),
    changed_on_one=lambda: calling(on_epoch=change_on_one),
    other_callbacks=lambda: fitted(callbacks=[hooks.EMA()] * rank()),
    metric_without_a_sum=lambda: fitted(metrics=[mx.metric.F1(name="theirs", average="micro")]),
    trainer_of_gluons_own_path=lambda: with_trainer(kvstore="dist_sync"),
    trainer_that_steps_on_its_kvstore=lambda: with_trainer([mx.cpu(0), mx.cpu(1)], update_on_kvstore=True),
    trainer_that_compresses=lambda: with_trainer(compression_params={"type": "2bit"}),
    trainer_of_dist_async=lambda: with_trainer(kvstore="dist_async"),
    other_kvstore=lambda: fitted(kvstore=["dist_sync", "horovod"][rank()]),
    noise=lambda: fitted(trainer="sgld"),
    too_few_for_drop_last=lambda: fitted(train=loader(9, 8, drop_last=True)),
    after_all_that=lambda: fitted(),
)


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
