"""The state of an optimizer goes through arrays and JSON, and training continues bit for bit."""

import copy
from functools import reduce
import json
import math
from operator import getitem

from built_nets import ready, stack
import mxkit
from mxkit.errors import CheckpointError, NotInitializedError
from mxkit.storage.optimizer_state import load_optimizer_state, optimizer_state
import mxnet as mx
from mxnet import autograd, gluon
import numpy as np
import pytest
from sharing import pairs, text_of

PLACES = [(1, None), (2, True), (2, False)]  # devices, update_on_kvstore
RATE = {"learning_rate": 0.05}
# Every optimizer of MXNet's registry, and the arguments that change what is kept.
OPTIMIZERS = [
    ("adadelta", {}),
    ("adagrad", RATE),
    ("adam", {"wd": 0.01}),
    ("adamax", RATE),
    ("ccsgd", {**RATE, "momentum": 0.9}),
    ("dcasgd", RATE),
    ("ftml", RATE),
    ("ftrl", RATE),
    ("groupadagrad", RATE),
    ("lamb", RATE),
    ("lars", {**RATE, "momentum": 0.9, "eta": 0.1}),
    ("lbsgd", {**RATE, "momentum": 0.9}),
    ("nadam", RATE),
    ("nag", {**RATE, "momentum": 0.9}),
    ("rmsprop", RATE),
    ("rmsprop", {**RATE, "centered": True}),
    ("sgd", RATE),
    ("sgd", {**RATE, "momentum": 0.9, "clip_gradient": 0.5}),
    ("sgld", {"learning_rate": 0.001}),
    ("signum", RATE),
    ("test", {"rescale_grad": 0.01}),
]
HALF = [("sgd", RATE), ("sgd", {**RATE, "momentum": 0.9}), ("nag", {**RATE, "momentum": 0.9}), ("adam", RATE)]
HALF += [("lamb", RATE), ("rmsprop", RATE), ("lars", {**RATE, "momentum": 0.9}), ("adagrad", RATE), ("adamax", RATE)]
HALF += [("signum", RATE), ("lbsgd", {**RATE, "momentum": 0.9}), ("dcasgd", RATE), ("ftml", RATE)]


class Scale(gluon.Block):
    """A layer without a matrix product, which MXNet's CPU lacks for float16."""

    def __init__(self, dtype="float32", shape=(3, 4), **keywords):
        super().__init__(**keywords)
        self.weight = self.params.get("weight", shape=shape, dtype=dtype)

    def forward(self, x):
        return x * self.weight.data(x.context)


def make_net(devices=1, dtype="float32", seed=3, names=("a_", "b_")):
    mxkit.seed_all(seed)
    net = stack(*[Scale(dtype, prefix=f"{seed}{name}") for name in names], kind=gluon.nn.Sequential)
    net.initialize(mx.init.Uniform(1), ctx=[mx.cpu(i) for i in range(devices)])
    return net


def make_trainer(net, optimizer="adam", arguments=RATE, on_kvstore=None, parameters=None):
    parameters = net.collect_params() if parameters is None else parameters
    return gluon.Trainer(parameters, optimizer, copy.deepcopy(arguments), update_on_kvstore=on_kvstore)


def train(net, trainer, first, last):
    """Updates number `first` to `last - 1`; each is a function of its number and of what there was before."""
    for number in range(first, last):
        mx.random.seed(number)  # SGLD's noise
        losses = []
        for place, parameter in enumerate(net.collect_params().list_ctx()):
            x = np.random.RandomState(10 * number + place).uniform(0.5, 1.5, (3, 4))
            dtype = next(iter(net.collect_params().values())).dtype
            with autograd.record():
                losses.append(((net(mx.nd.array(x, parameter, dtype)) - 1) ** 2).sum())
        autograd.backward(losses)
        trainer.step(4, ignore_stale_grad=True)


def replicas(net):
    return [[a.asnumpy() for a in p.list_data()] for p in net._collect_params_with_prefix().values()]


def copy_weights(values, net):
    for arrays, parameter in zip(values, net._collect_params_with_prefix().values()):
        for array, target in zip(arrays, parameter.list_data()):
            target[:] = mx.nd.array(array, dtype=array.dtype)


def through_files(saved, folder):
    """The state as a checkpoint's files would give it back."""
    arrays, state = saved
    assert all(array.context == mx.cpu() for array in arrays.values())
    mx.nd.save(str(folder / "optimizer.params"), arrays)
    return mx.nd.load(str(folder / "optimizer.params")), json.loads(json.dumps(state))


def assert_same_state(one, other):
    assert json.loads(json.dumps(one[1])) == json.loads(json.dumps(other[1]))
    arrays, others = dict(one[0]), dict(other[0])  # nd.load gives an empty list for no array
    assert arrays.keys() == others.keys()
    for name in arrays:
        np.testing.assert_array_equal(arrays[name].asnumpy(), others[name].asnumpy(), name)


def assert_same_weights(net, other):
    for arrays, others in zip(replicas(net), replicas(other)):
        for array, same in zip(arrays, others):
            assert np.isfinite(array).all()
            np.testing.assert_array_equal(array, same)


def maker(name, arguments, place, dtype="float32"):
    def make(seed):
        net = make_net(place[0], dtype, seed)
        return net, make_trainer(net, name, arguments, place[1])

    return make


def resume(folder, make, used=False, run=None):
    """Stop a run after 5 updates and continue in a new one; both must end with equal bits."""
    net, trainer = run or make(3)
    train(net, trainer, 0, 5)
    weights, saved = replicas(net), through_files(optimizer_state(net, trainer), folder)
    other, new = make(8)
    if used:
        train(other, new, 20, 23)
        for arrays, parameter in zip(weights, other._collect_params_with_prefix().values()):
            parameter.set_data(mx.nd.array(arrays[0], dtype=arrays[0].dtype))
    else:
        if any((one != two).any() for one, *more in weights for two in more):
            # the replicas have drifted apart (T24), and a kvstore that is made later would make them equal
            new._init_kvstore()
            new._init_params()
        copy_weights(weights, other)
    optimizer = new.optimizer
    load_optimizer_state(other, new, *saved)
    assert new.optimizer is optimizer
    assert_same_state(optimizer_state(other, new), saved)
    train(net, trainer, 5, 10)
    train(other, new, 5, 10)
    assert_same_weights(other, net)
    assert_same_state(optimizer_state(other, new), optimizer_state(net, trainer))
    return saved, trainer, new


def test_every_optimizer_of_mxnet_is_tested():
    # mx.contrib.svrg_optimization registers private ones
    public = {name for name in mx.optimizer.Optimizer.opt_registry if not name.startswith("_")}
    assert {name for name, _ in OPTIMIZERS} == public


SCHEDULERS = [
    mx.lr_scheduler.FactorScheduler(2, 0.7, base_lr=0.3),
    mx.lr_scheduler.MultiFactorScheduler([3, 7], 0.3, base_lr=0.3),
    mx.lr_scheduler.PolyScheduler(9, base_lr=0.3, warmup_steps=3),
    mx.lr_scheduler.CosineScheduler(9, base_lr=0.3, final_lr=0.01),
]
# Optimizer, its arguments, the weights' dtype, and whether the new Trainer has made updates before.
RESUMED = [(name, arguments, "float32", False) for name, arguments in OPTIMIZERS]
RESUMED += [(name, {**RATE, "wd": 0.1}, "float32", True) for name in ("adam", "nag", "ftml", "lars")]
RESUMED += [(name, {**arguments, "multi_precision": True}, "float16", False) for name, arguments in HALF]
# learning_rate would overwrite the scheduler's base, and LARS corrects its momentum by the change of rate
OF_LARS = {"momentum": 0.9, "eta": 0.1}
RESUMED += [("lars", {**OF_LARS, "lr_scheduler": one}, "float32", False) for one in SCHEDULERS]


@pytest.mark.parametrize(("case", "place"), pairs(RESUMED, PLACES))
def test_a_resumed_run_ends_where_the_whole_one_ends(tmp_path, case, place):
    """T60b."""
    name, arguments, dtype, used = case
    (arrays, _), *trainers = resume(tmp_path, maker(name, arguments, place, dtype), used)
    if dtype == "float16":
        assert {array.dtype for array in arrays.values()} == {np.float32}  # masters
    if "lr_scheduler" in arguments:
        one, other = (vars(trainer.optimizer.lr_scheduler) for trainer in trainers)
        assert one == other


def test_a_schedule_may_be_made_longer():
    nets = [make_net(seed=seed) for seed in (3, 8)]
    makers = [mx.lr_scheduler.CosineScheduler(end, base_lr=0.3) for end in (10, 30)]
    old, new = (make_trainer(net, "sgd", {"lr_scheduler": one}) for net, one in zip(nets, makers))
    train(nets[0], old, 0, 5)
    load_optimizer_state(nets[1], new, *optimizer_state(nets[0], old))
    assert new.learning_rate == pytest.approx(0.3 * (1 + math.cos(math.pi * 5 / 30)) / 2)


MOMENTA = [(0.9, 0.5, False), (0.0, 0.9, False), (0.9, 0.0, False), (0.9, 0.5, True), (0.9, 0.0, True)]


@pytest.mark.parametrize(
    ("momenta", "situation"), pairs(MOMENTA, [(place, done) for done in (2, 0) for place in PLACES])
)
def test_numbers_that_a_callback_has_set(tmp_path, momenta, situation):
    before, after, half = momenta
    place, done = situation
    arguments = {**RATE, "momentum": before, "multi_precision": half}
    make = maker("sgd", arguments, place, "float16" if half else "float32")
    net, trainer = make(3)
    train(net, trainer, 20, 20 + done)
    mxkit.nets.set_hyperparameters(trainer, learning_rate=0.03, momentum=after, wd=0.02)
    resume(tmp_path, make, run=(net, trainer))


def test_a_clip_that_was_taken_away(tmp_path):
    make = maker("adam", {"clip_gradient": 0.1}, PLACES[0])
    net, trainer = make(3)
    mxkit.nets.set_hyperparameters(trainer, clip_gradient=None, beta1=0.5)
    resume(tmp_path, make, run=(net, trainer))


# names


def test_states_go_by_path_not_by_gluons_order(tmp_path):
    """T60a."""
    # "10" sorts before "9": the Trainer's numbers of the two layers change places
    names = [("9_", "10_"), ("0_", "1_")]
    runs = [make_net(names=one) for one in names]
    trainers = [make_trainer(net, "sgd", {**RATE, "momentum": 0.9}) for net in runs]
    assert [p.name for p in trainers[0]._params] == ["310_weight", "39_weight"]
    (_, state), *_ = resume(tmp_path, lambda seed: (runs[1], trainers[1]), run=(runs[0], trainers[0]))
    assert list(state["replicas"][0]["updates"]) == ["1.weight", "0.weight"]


def test_a_trainer_over_some_parameters(tmp_path):
    def make(seed):
        net = make_net(seed=seed)
        return net, make_trainer(net, parameters=net[1].collect_params())

    (arrays, state), *_ = resume(tmp_path, make)
    assert sorted(arrays) == ["1.weight:0", "1.weight:1"]
    assert state["replicas"] == [{"updates": {"1.weight": 5}, "slots": {"1.weight": ["0", "1"]}}]


def test_shared_and_foreign_parameters():
    net = make_net()
    net.add(net[0])
    foreign = ready(Scale(prefix="loss_"))
    trainer = make_trainer(net, "adagrad", parameters=[foreign.weight, net[1].weight, net[0].weight])
    for parameter in trainer._params:
        parameter.grad()[:] = 1
    trainer.step(1, ignore_stale_grad=True)
    assert optimizer_state(net, trainer)[0] == {}  # nothing is fresh, so nothing was updated
    for parameter in trainer._params:
        parameter.data()._fresh_grad = True
    trainer.step(1)
    arrays, state = optimizer_state(net, trainer)
    assert sorted(arrays) == ["0.weight:0", "1.weight:0", "trainer.loss_weight:0"]
    load_optimizer_state(net, trainer, arrays, state)


def test_what_has_no_state_yet_is_absent_and_begins_anew():
    net, other = make_net(), make_net(seed=8)
    trainer, used = make_trainer(net), make_trainer(other)
    net[0].weight.grad_req = "null"
    train(net, trainer, 0, 2)
    train(other, used, 0, 3)
    arrays, state = optimizer_state(net, trainer)
    assert sorted(arrays) == ["1.weight:0", "1.weight:1"]
    load_optimizer_state(other, used, arrays, state)
    assert_same_state(optimizer_state(other, used), (arrays, state))
    copy_weights(replicas(net), other)
    net[0].weight.grad_req = "write"
    for each in (net, trainer), (other, used):
        train(*each, 2, 5)
    assert_same_weights(other, net)


# devices


def test_states_that_differ_between_devices(tmp_path):
    net, other = make_net(2), make_net(2, seed=8)
    trainer, new = (make_trainer(one, "adam", on_kvstore=False) for one in (net, other))
    train(net, trainer, 0, 3)
    trainer._updaters[1].states[1][0][:] += 1
    saved = through_files(optimizer_state(net, trainer), tmp_path)
    assert [name for name in saved[0] if "@" in name] == ["1.weight:0@1"]
    load_optimizer_state(other, new, *saved)
    assert_same_state(optimizer_state(other, new), saved)
    for device in range(2):
        assert type(new._updaters[device].states[1]) is tuple
        for state, same in zip(trainer._updaters[device].states[1], new._updaters[device].states[1]):
            assert same.context == mx.cpu(device)
            np.testing.assert_array_equal(state.asnumpy(), same.asnumpy())
    counted = {}, json.loads(json.dumps(optimizer_state(other, new)[1]))
    counted[1]["replicas"] = [{"updates": {"0.weight": count}, "slots": {}} for count in (1, 2)]
    for devices, differing in [(1, saved), (3, saved), (1, counted)]:
        net = make_net(devices)
        with pytest.raises(CheckpointError, match=f"of 2 devices differ .* keeps {devices}: resume on 2 devices"):
            load_optimizer_state(net, make_trainer(net, "adam", on_kvstore=False), *differing)


@pytest.mark.parametrize(("to", "place"), pairs([*PLACES, (3, False), (3, True)], PLACES))
def test_another_number_of_devices(place, to):
    net, other = make_net(place[0]), make_net(to[0], seed=8)
    trainer, new = make_trainer(net, on_kvstore=place[1]), make_trainer(other, on_kvstore=to[1])
    train(net, trainer, 0, 3)
    arrays, state = optimizer_state(net, trainer)
    load_optimizer_state(other, new, arrays, state)
    again, new_state = optimizer_state(other, new)
    assert_same_state((again, {**new_state, "replicas": []}), (arrays, {**state, "replicas": []}))
    assert new_state["replicas"] == state["replicas"][:1] * len(new_state["replicas"])
    train(other, new, 3, 4)
    counts = [counts for counts in new.optimizer._all_index_update_counts.values() if 4 in counts.values()]
    assert len(counts) == (to[0] if to[1] is False else 1)
    assert optimizer_state(other, new)[1]["numbers"]["num_update"] == 4


@pytest.mark.parametrize("numbers", [[1], [1, 2]])
def test_states_lie_where_they_lay_also_without_the_first_device(numbers):
    nets = make_net(), make_net(seed=8)
    for net in nets:
        net.collect_params().reset_ctx([mx.cpu(number) for number in numbers])
    trainers = [make_trainer(net) for net in nets]
    train(nets[0], trainers[0], 0, 3)
    copy_weights(replicas(nets[0]), nets[1])
    load_optimizer_state(nets[1], trainers[1], *optimizer_state(nets[0], trainers[0]))
    for net, trainer in zip(nets, trainers):
        train(net, trainer, 3, 6)
    assert_same_weights(*nets)
    if len(numbers) > 1:  # on a kvstore the first update moves states to the devices of its own weights
        old, new = ([[a.context for a in state] for state in one._kvstore._updater.states.values()] for one in trainers)
        assert old == new


@pytest.mark.parametrize("place", PLACES)
def test_a_trainer_that_never_stepped(place):
    net, other = make_net(place[0]), make_net(place[0], seed=8)
    trainer, used = make_trainer(net, on_kvstore=place[1]), make_trainer(other, on_kvstore=place[1])
    arrays, state = optimizer_state(net, trainer)
    assert arrays == {}
    assert not trainer._kv_initialized
    train(other, used, 0, 2)
    load_optimizer_state(other, used, [], json.loads(json.dumps(state)))
    assert optimizer_state(other, used)[0] == {}
    assert used.optimizer.num_update == 0


# what is not common


def test_sparse_weights_on_their_kvstore(tmp_path):
    def make(seed=3):
        mxkit.seed_all(seed)
        net = ready(gluon.contrib.nn.SparseEmbedding(5, 3, prefix=f"sparse{seed}_"))
        return net, make_trainer(net, "adam", RATE, None)

    def update(net, trainer, number):
        with autograd.record():
            loss = (net(mx.nd.array([number % 5, 2])) ** 2).sum()
        loss.backward()
        trainer.step(2)

    def value(net):
        return net.weight.row_sparse_data(mx.nd.arange(5)).asnumpy()

    (net, trainer), (other, new) = make(), make(3)
    for number in range(3):
        update(net, trainer, number)
        update(other, new, number)
    saved = through_files(optimizer_state(net, trainer), tmp_path)
    assert {array.stype for array in saved[0].values()} == {"row_sparse"}
    for state in new._kvstore._updater.states[0]:
        state[:] = 0
    load_optimizer_state(other, new, *saved)
    for number in range(3, 6):
        update(net, trainer, number)
        update(other, new, number)
    np.testing.assert_array_equal(value(other), value(net))


class Counting(mx.optimizer.SGD):
    """A user's own: it counts in an attribute that is not there at first, and has a rate of NumPy's."""

    def update_multi_precision(self, index, weight, grad, state):
        self.calls = getattr(self, "calls", 0) + 1
        super().update_multi_precision(index, weight, grad, state)


def test_a_users_subclass_stays_and_its_numbers_come_back(tmp_path):
    optimizers = [Counting(momentum=0.9, learning_rate=np.float32(0.05), wd=wd) for wd in (np.int64(0), 0.5)]
    optimizers[1].note = "mine"
    nets = [make_net(), make_net(seed=8)]
    old, new = (gluon.Trainer(net.collect_params(), one) for net, one in zip(nets, optimizers))
    resume(tmp_path, lambda seed: (nets[1], new), run=(nets[0], old))
    assert (new.optimizer.note, new.optimizer.wd, new.optimizer.calls) == ("mine", 0, old.optimizer.calls)


class Listing(mx.optimizer.Adam):
    """A user's own whose states are lists, for some parameters."""

    def create_state(self, index, weight):
        return list(super().create_state(index, weight)) if "b_" in self.param_dict[index].name else [None] * 2

    def update(self, index, weight, grad, state):
        if state[0] is not None:
            super().update(index, weight, grad, state)


def test_states_in_lists(tmp_path):
    nets = [make_net(), make_net(seed=8)]
    old, new = (gluon.Trainer(net.collect_params(), Listing()) for net in nets)
    (arrays, state), *_ = resume(tmp_path, lambda seed: (nets[1], new), run=(nets[0], old))
    assert sorted(arrays) == ["1.weight:0", "1.weight:1"]
    assert state["replicas"][0]["slots"] == {"0.weight": [None, None], "1.weight": ["0", "1"]}
    assert [type(state) for state in new._updaters[0].states.values()] == [list, list]


def test_only_numbers_that_can_move_are_stored():
    net = make_net()
    scheduler = mx.lr_scheduler.MultiFactorScheduler([1, 9], 0.5, base_lr=0.4)
    numbers = []
    for trainer in (make_trainer(net, "adam", {}), make_trainer(net, "sgd", {"lr_scheduler": scheduler})):
        train(net, trainer, 0, 3)
        numbers.append(optimizer_state(net, trainer)[1])
    names = "lr wd beta1 beta2 epsilon clip_gradient begin_num_update num_update"
    assert set(numbers[0]["numbers"]) == set(names.split())
    stored = {"base_lr": 0.2, "count": 1, "cur_step_ind": 1}
    assert numbers[1]["scheduler"] == {"name": "MultiFactorScheduler", "numbers": stored}


# what does not fit


def saved_adam():
    net = make_net()
    trainer = make_trainer(net, "adam", RATE)
    train(net, trainer, 0, 2)
    arrays, state = optimizer_state(net, trainer)
    return arrays, json.loads(json.dumps(state))


def assert_refused(arrays, state, match, trainer=None, net=None):
    """The load is refused with this text, and the trainer is left as it was."""
    net = make_net() if net is None else net
    trainer = make_trainer(net) if trainer is None else trainer
    train(net, trainer, 0, 3)
    before = optimizer_state(net, trainer)
    with pytest.raises(CheckpointError, match=match):
        load_optimizer_state(net, trainer, arrays, state)
    assert_same_state(optimizer_state(net, trainer), before)


def test_another_optimizer_scheduler_layout_or_net_is_refused():
    """T50."""
    saved, rmsprop = saved_adam(), make_net(seed=8)
    trainer = make_trainer(rmsprop, "rmsprop")
    train(rmsprop, trainer, 0, 1)
    one, other = make_net(), make_net(names=("a_",))
    scheduler = {"lr_scheduler": mx.lr_scheduler.CosineScheduler(10)}
    text = "another optimizer: Adam in the checkpoint, SGD in the trainer. Make the Trainer with Adam$"
    assert_refused(*saved, text, make_trainer(one, "sgd"), one)
    text = "another lr_scheduler: None in the checkpoint, CosineScheduler in the trainer's"
    assert_refused(*saved, text, make_trainer(one, "adam", scheduler), one)
    text = r"another layout: 0.weight has \['0'\] in the checkpoint, \['0', '1', '2'\] with the trainer's RMSProp"
    centered = make_trainer(one, "rmsprop", {"centered": True})
    assert_refused(*optimizer_state(rmsprop, trainer), text, centered, one)
    assert_refused(*saved, "not a parameter of the trainer: 1.weight did you mean '0.weight'", net=other)


def test_all_that_does_not_fit_is_listed():
    arrays, state = saved_adam()
    del arrays["0.weight:0"]
    arrays["0.weight:1"] = mx.nd.zeros((3, 5))
    arrays["1.weight:0"] = arrays["1.weight:0"].astype("float16")
    arrays["1.weight:1"] = mx.nd.zeros((3, 4)).tostype("row_sparse")
    arrays["1.weight:3"] = mx.nd.zeros((3, 4))
    net = make_net()
    trainer = make_trainer(net)
    assert text_of(CheckpointError, load_optimizer_state, net, trainer, arrays, state).splitlines() == [
        "the optimizer's state does not fit the trainer, whose optimizer is left as it was:",
        "  missing in the checkpoint: 0.weight:0 (3, 4)",
        "  not alike: 0.weight:1 is ((3, 5), 'float32', 'default'), expected ((3, 4), 'float32', 'default')",
        "  not alike: 1.weight:0 is ((3, 4), 'float16', 'default'), expected ((3, 4), 'float32', 'default')",
        "  not alike: 1.weight:1 is ((3, 4), 'float32', 'row_sparse'), expected ((3, 4), 'float32', 'default')",
        "  not a state of the trainer: 1.weight:3 did you mean '1.weight:1'?",
    ]


LEFT_OUT = object()
GARBAGE = [
    *(([part], LEFT_OUT, "not of the form") for part in ("optimizer", "numbers", "scheduler", "replicas")),
    (["numbers"], None, "not of the form"),
    (["numbers", "lr"], "0.1", "not of the form"),
    (["numbers", "lr"], None, "Adam has lr=0.05, the checkpoint None"),
    (["numbers", "num_update"], 2.5, "Adam has num_update=3, the checkpoint 2.5"),
    (["numbers", "param_dict"], 1, "Adam has param_dict=.*, the checkpoint 1"),
    (["numbers", "multi_precision"], True, "Adam has multi_precision=False, the checkpoint True"),
    (["scheduler"], 3, "not of the form"),
    (["scheduler"], {"name": 7, "numbers": {}}, "another lr_scheduler: 7 in"),
    (["optimizer"], ["Adam"], r"another optimizer: \['Adam'\] in"),
    (["replicas", 0, "updates", "0.weight"], -1, "not of the form"),
    (["replicas", 0, "slots", "0.weight"], "0", "another layout: 0.weight has '0' in"),
    (["replicas", 0, "slots", "0.weight"], ["0", ["1"]], "another layout: 0.weight"),
]


def test_garbage_is_a_checkpoint_error():
    arrays, sound = saved_adam()
    for part, value, match in GARBAGE:
        whole = copy.deepcopy({"state": sound})
        *outer, last = ["state", *part]
        holder = reduce(getitem, outer, whole)
        holder[last] = value
        if value is LEFT_OUT:
            del holder[last]
        assert_refused(arrays, whole["state"], match)


def test_what_has_no_state_to_save_or_no_value_to_load_is_told():
    class Keeping(mx.optimizer.SGD):
        def create_state(self, index, weight):
            return {"mean": weight}

    arrays, state = saved_adam()
    assert_refused(None, state, "expected NDArrays by name; received None")
    assert_refused({**arrays, "0.weight:1": "text"}, state, "not alike: 0.weight:1 is 'text', expected")
    net, waiting = make_net(), gluon.nn.Dense(3)
    waiting.initialize()
    trainer, keeping = make_trainer(net), make_trainer(net, Keeping(), {})
    saved, unknown = optimizer_state(net, trainer), make_trainer(waiting)
    assert optimizer_state(waiting, unknown)[0] == {}
    with pytest.raises(NotInitializedError, match="parameter 'weight' has no value yet. Load the net's weights"):
        load_optimizer_state(waiting, unknown, *saved)
    train(net, keeping, 0, 1)
    trainer._kvstore_params = {"kvstore": "dist_sync", "update_on_kvstore": None}
    lbsgd = make_trainer(net, "lbsgd", {**RATE, "batch_scale": 3})
    for call, words in [
        (lambda: optimizer_state(net, keeping), "(?s)Keeping keeps for '0.weight' {'mean': .*expected NDArrays, None"),
        (lambda: optimizer_state(net, lbsgd), "batch_scale above 1 keeps sums of gradients"),
        (lambda: optimizer_state(net, trainer), "out of reach: .*kvstore 'dist_sync', .* update_on_kvstore=False"),
        (lambda: load_optimizer_state(net, trainer, *saved), "out of reach: .*kvstore 'dist_sync'"),
    ]:
        with pytest.raises(CheckpointError, match=words):
            call()
