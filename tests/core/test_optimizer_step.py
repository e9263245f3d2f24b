"""`OptimizerStep` against `trainer.update`: the same bits of weights and states, the same counts, after any change."""

from functools import lru_cache

import mxkit  # noqa: F401  before mxnet
from mxkit.core.arrays import switches
from mxkit.core.prepared import GROUP, GROUP_OF_SMALL, LARGE, SMALL, OptimizerStep, same_rate
from mxkit.core.replicas import gradients_of, lend_values, request_gradient, set_fresh, values_of
import mxnet as mx
from mxnet import gluon
import numpy as np
import pytest

# two large ones; of the others more than a call takes
SHAPES = [(128, 257), (3, 4), (), (70, 500), *[(40, 25)] * (GROUP + 1), *[(2,)] * (GROUP_OF_SMALL + 3)]
assert sum(np.prod(shape) >= LARGE for shape in SHAPES) == 2
assert sum(SMALL <= np.prod(shape) < LARGE for shape in SHAPES) == GROUP + 1


class Counted(mx.lr_scheduler.FactorScheduler):
    """A schedule that remembers its calls."""

    def __call__(self, update):
        self.calls = [*getattr(self, "calls", ()), update]
        return super().__call__(update)


def make_trainer(spec, devices):
    name, arguments = spec
    parameters = []
    for number, shape in enumerate(shape or (1,) for shape in SHAPES):
        parameters.append(gluon.Parameter(f"p{number}", shape=shape, lr_mult=1 + number % 3))
        parameters[-1].initialize(mx.init.Zero(), ctx=devices)
        parameters[-1].set_data(mx.nd.array(np.random.RandomState(number).randn(*shape)))
    if arguments.get("lr_scheduler"):
        arguments = {**arguments, "lr_scheduler": Counted(2, 0.93, base_lr=arguments["learning_rate"])}
    trainer = gluon.Trainer(parameters, name, arguments, update_on_kvstore=False)
    trainer.allreduce_grads()  # makes the kvstore
    return trainer


@lru_cache(maxsize=None)
def gradient_values(seed, number, device):
    return mx.nd.array(np.random.RandomState([seed, number]).randn(*SHAPES[number] or (1,)), ctx=device)


def compute_gradients(trainer, seed):
    for number, parameter in enumerate(trainer._params):
        for gradient in gradients_of(parameter) or ():
            gradient_values(seed, number, gradient.ctx).copyto(gradient)
        if parameter.grad_req != "null":
            set_fresh(values_of(parameter), True)


def flat(state):
    return [] if state is None else list(state) if isinstance(state, (tuple, list)) else [state]


def found(trainer):
    """All that an update changes, with arrays as their bits."""
    optimizer = trainer._optimizer
    arrays = [replica for parameter in trainer._params for replica in values_of(parameter)]
    states = [state for updater in trainer._updaters for _, state in sorted(updater.states.items())]
    arrays += [array for state in states for array in flat(state)]
    return {
        "bits": [array.asnumpy().tobytes() for array in arrays],
        "fresh": [replica._fresh_grad for parameter in trainer._params for replica in values_of(parameter)],
        "indices": [sorted(updater.states) for updater in trainer._updaters],
        "synced": [updater.states_synced for updater in trainer._updaters],
        "counts": (optimizer._all_index_update_counts, optimizer._index_update_count, optimizer.num_update),
        "schedule": getattr(optimizer.lr_scheduler, "calls", None),
        "rescale": optimizer.rescale_grad,
    }


def freeze(trainer):
    for parameter in trainer._params[1:4]:
        parameter.grad_req = "null"


def unfreeze(trainer):
    for parameter in trainer._params[1:4]:
        parameter.grad_req = "write"


def change_multipliers(trainer):
    trainer._params[0].lr_mult, trainer._params[5].wd_mult = 0.37, 0.0


def lose_states(trainer):
    for updater in trainer._updaters:
        updater.states.pop(0)
        updater.states_synced.pop(0)


def replace_states(trainer):
    for updater in trainer._updaters:
        state = [array * 0.5 for array in flat(updater.states[3])]
        updater.states[3] = tuple(state) if isinstance(updater.states[3], tuple) else (state or [None])[0]


def replace_schedule(trainer):
    trainer._optimizer.lr_scheduler = Counted(1, 0.71, base_lr=0.0313)


def drop_schedule(trainer):
    trainer._optimizer.lr_scheduler = None
    trainer.set_learning_rate(0.0123)


def reset(trainer):
    trainer._params[0].reset_ctx(list(reversed(trainer._contexts)))
    trainer._params[0].reset_ctx(trainer._contexts)
    trainer._params[1].initialize(mx.init.One(), ctx=trainer._contexts, force_reinit=True)


def renew_gradients(trainer):
    trainer._params[2]._init_grad()


def freeze_quietly(trainer):
    trainer._params[2]._grad_req = "null"


def lend(trainer):
    parameter = trainer._params[3]
    lend_values(parameter, [value * 2 for value in values_of(parameter)])
    mx.autograd.mark_variables(parameter._data, parameter._grad)


def setting(**values):
    def change(trainer):
        for name, value in values.items():
            assert hasattr(trainer._optimizer, name)
            setattr(trainer._optimizer, name, value)

    change.__name__ = f"setting {values}"
    return change


COMMON = [
    *(freeze, unfreeze, change_multipliers, lose_states, replace_states, replace_schedule, drop_schedule, reset),
    *(lend, renew_gradients, freeze_quietly, renew_gradients),
    *(setting(wd=0.0123), setting(clip_gradient=0.4), setting(clip_gradient=None)),
    *(setting(num_update=40, begin_num_update=30), setting(aggregate_num=3), setting(rescale_grad=7.0)),
]
OPTIMIZERS = {
    "momentum": (
        ("sgd", {"learning_rate": 0.07, "momentum": 0.9, "wd": 0.003, "lr_scheduler": True}),
        [
            *(setting(momentum=0.5), setting(momentum=0), setting(momentum=0.77), setting(lr=1.4138932824927958e-05)),
            *(setting(lr=rate) for rate in (1e-12, 0, 1 + 2**-24, np.float32(0.1), np.float16(0.1))),
        ],
    ),
    "sgd": (("sgd", {"learning_rate": 0.07, "wd": 0.01}), []),
    "adam": (
        ("adam", {"learning_rate": 0.007, "wd": 0.003, "lr_scheduler": True}),
        [setting(beta1=0.8, beta2=0.99), setting(epsilon=1e-3), setting(aggregate_num=0)],
    ),
    "nag": (("nag", {"learning_rate": 0.01, "momentum": 0.9}), [setting(momentum=0.3)]),
    "rmsprop": (("rmsprop", {"learning_rate": 0.01}), [setting(gamma1=0.7), setting(clip_weights=0.5)]),
}


@pytest.mark.parametrize(("name", "devices"), [*((name, 1) for name in OPTIMIZERS), ("momentum", 2)])
def test_an_update_after_any_change_equals_that_of_the_trainer(name, devices, tmp_path):
    """T182."""
    spec, own = OPTIMIZERS[name]
    devices = [mx.cpu(number) for number in range(devices)]
    stock, fast = make_trainer(spec, devices), make_trainer(spec, devices)
    step = OptimizerStep(fast)

    def load_states(trainer):  # of the other one
        trainer.load_states(str(tmp_path / str(trainer is stock)))

    seed = 0
    for change in [lambda trainer: None, *COMMON, load_states, *own]:
        if change is load_states:
            for trainer in (stock, fast):
                trainer.save_states(str(tmp_path / str(trainer is fast)))
        for trainer in (stock, fast):
            change(trainer)
        for divisor in (48, 3.5):
            seed += 1
            for trainer in (stock, fast):
                compute_gradients(trainer, seed % 3)
            stock.update(divisor)
            step(divisor)
            assert found(fast) == found(stock), (getattr(change, "__name__", change), divisor)
        assert bool(step._plans) == (getattr(change, "__name__", "") != "setting {'clip_weights': 0.5}")


@pytest.mark.parametrize("rate", [-0.1, -0.0, 1e-10, 1e8, float("nan"), float("inf"), 1 + 2**-24, np.float16(0.1)])
def test_a_rate_without_a_sure_text_goes_to_the_other_operator(rate):
    """T182."""
    assert same_rate(rate) is None


class OwnSGD(mx.optimizer.SGD):
    def update_multi_precision(self, index, weight, grad, state):
        for one in weight:
            one[:] = 5.0


class OwnTrainer(gluon.Trainer):
    def _update(self, ignore_stale_grad=False):
        super()._update(ignore_stale_grad)
        self._params[0].set_data(mx.nd.array([5.0, 5.0]))


@pytest.mark.parametrize("kind", ["optimizer", "trainer", "update"])
def test_code_of_ones_own_is_called(kind):
    parameter = gluon.Parameter("p", shape=(2,))
    parameter.initialize(mx.init.One())
    optimizer = OwnSGD() if kind == "optimizer" else mx.optimizer.SGD()
    trainer = (OwnTrainer if kind == "trainer" else gluon.Trainer)([parameter], optimizer, update_on_kvstore=False)
    trainer.allreduce_grads()
    if kind == "update":
        trainer.update = lambda divisor: parameter.set_data(mx.nd.array([5.0, 5.0]))
    step = OptimizerStep(trainer)
    for _ in range(3):
        parameter.grad()[:] = 1
        set_fresh(values_of(parameter), True)
        step(1)
    assert parameter.data().asnumpy().tolist() == [5.0, 5.0]


def test_arrays_of_mx_np_keep_their_flags():
    with switches(True):
        parameter = gluon.Parameter("p", shape=(2,))
        parameter.initialize(mx.init.One())
        trainer = gluon.Trainer([parameter], "adam", update_on_kvstore=False)
        trainer.allreduce_grads()
        step = OptimizerStep(trainer)
        for number in range(4):
            for request in ("add", "write"):  # a window that adds up: `mark_variables` makes new records
                request_gradient(parameter, request)
            with mx.autograd.record():
                loss = (parameter.data() ** 2).sum()
            loss.backward()
            assert parameter.data()._fresh_grad
            step(1)
            assert not parameter.data()._fresh_grad
            assert bool(step._plans) == (number > 0)
    assert (parameter.data().asnumpy() < 0.9961).all()
