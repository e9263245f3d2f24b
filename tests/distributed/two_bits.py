"""A program: trainings whose workers send 2 bits of each number of their gradients."""

from pathlib import Path
import sys
import warnings

from joint_cases import data, fitted, made, mlp, net_of
from joint_runs import write
import mxkit
from mxkit.distributed.group import current
import mxnet as mx
from mxnet.gluon import nn

WORKERS, THRESHOLD, EPOCHS, TURN = 2, 0.004, 4, 7
SMALL = 4e-7


def two_bits(threshold=THRESHOLD):
    return {"type": "2bit", "threshold": threshold}


def shares():
    """The joint batch is 16; the last one of an epoch has 3 samples."""
    return mxkit.data.ArrayLoader(*data(51), 8, shuffle=True, seed=3)


def trained(net=None, train=None, **arguments):
    return fitted(
        net, train or shares(), **{"epochs": EPOCHS, "valid": data(30), "compression": two_bits(), **arguments}
    )


def error(**arguments):
    try:
        trained(**arguments)
    except (mxkit.errors.MxkitError, ValueError) as caught:
        return str(caught)
    return "no error"


def twins():
    """The first two layers have parameters of the same shapes."""
    net = net_of(nn.Dense(6, in_units=6), nn.Dense(6, in_units=6), nn.Dense(3, in_units=6))
    made(net)
    mxkit.freeze(net, "1.*")
    return net


class Turn(mxkit.Callback):
    """Trains the second twin in place of the first one."""

    def on_update(self, state, update):
        if update.step == TURN:
            mxkit.freeze(state.net, "0.*")
            mxkit.unfreeze(state.net, "1.*")


def resumed(folder):
    class Stop(mxkit.Callback):
        def on_epoch(self, state, row):
            state.stop("for now", for_now=True)

    trained(epochs=2, checkpoint=mxkit.Checkpoints(folder / "run", every="1 epoch"), callbacks=[Stop()])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trained(epochs=2, checkpoint=mxkit.Checkpoints(folder / "run"), callbacks=[Stop()], resume=True)
    return [str(one.message) for one in caught]


def main(folder):
    folder = Path(folder)
    warnings.simplefilter("ignore")
    mxkit.distributed.initialize()
    group, rank = current(), mxkit.distributed.rank()
    found = {"other threshold": error(compression=two_bits(1 + rank)), "float16": error(amp="float16")}
    found["plain"] = trained(compression=None)
    found["compressed"] = trained()
    found["again"] = trained()
    group.piece = 10
    found["pieces on two devices"] = trained(made(mlp(), [mx.cpu(0), mx.cpu(1)]))
    group.piece = sys.maxsize
    found["twins"] = trained(twins(), callbacks=[Turn()])
    few = {"epochs": 1, "limit_batches": 1, "valid": None, "compression": two_bits(SMALL)}
    found["small"] = trained(trainer=("sgd", {"learning_rate": 0.01 / SMALL}), **few)
    found["not finite"] = error(loss=lambda output, label: mx.nd.sqrt(0 * output).sum(axis=1))
    wide = made(mlp())
    wide.cast("float64")
    x, y = data()
    train = [(mx.nd.array(x, dtype="float64"), mx.nd.array(y))] * WORKERS
    found["float64"] = error(net=wide, train=train, valid=None)
    found["without"] = error(compression=None)
    found["resumed"] = resumed(folder)
    write(folder, rank, found)


if __name__ == "__main__":
    main(*sys.argv[1:])
