"""What workers may not do in different ways, and what one of them may do alone."""

from joint_runs import once, results, results_of
import pytest

SAME = "all workers must get the same data in the same order, whole and not cut up by rank"
BEFORE = "the workers differ in the arguments of fit: "
ERRORS = {
    "other_samples": [BEFORE + "digest of the arrays of train", SAME, "worker 0 has", "worker 1 has"],
    "cut_up_by_rank": [BEFORE + "digest of the arrays of train", SAME],
    "other_batch_size": [BEFORE + "batch_size of train", "worker 0 has 8, worker 1 has 9"],
    "other_kind_of_data": [BEFORE + "class of train", "worker 0 has list, worker 1 has ArrayLoader"],
    "lists_of_ones_own": ["the workers differ in the first batches of train in epoch 1", SAME],
    "other_first_batch": ["the workers differ in the first batches of train in epoch 1", SAME],
    "other_order": ["the workers differ in the first batches of train in epoch 1", SAME],
    "other_validation": ["the workers differ in the first batches of valid", SAME],
    "no_validation": [BEFORE + "class of valid", "worker 0 has NoneType, worker 1 has ArrayLoader"],
    "other_net": ["the workers differ in the parameters of the net", "[[8, 6], 'float32']", "[[9, 6], 'float32']"],
    "other_optimizer": [BEFORE + "lr of the optimizer: worker 0 has 0.1, worker 1 has 1.1"],
    "other_seed": [BEFORE + "seed: worker 0 has 0, worker 1 has 1"],
    "other_length": [BEFORE + "epochs: worker 0 has [2, 'epochs'], worker 1 has [3, 'epochs']"],
    "other_metrics": [BEFORE + "metrics"],
    "other_callbacks": [BEFORE + "callbacks", "writes = True", "worker 1 has ['EMA']"],
    "other_rate": ["the workers differ at update 2: learning rate: worker 0 has 0.1, worker 1 has 1.1"],
    "frozen_on_one": ["the workers differ at update 2: number of trained parameters: worker 0 has 4, worker 1 has 3"],
    "changed_on_one": [
        "the workers differ in the parameters before update 5",
        "callbacks must change parameters on all",
    ],
    "metric_without_a_sum": ["metric 'theirs' is no mean over samples", "Use ('f1', {'positive': 1}), which is exact"],
    "sparse_gradients": ["embedding", "sparse gradients, which MXNet cannot use for training in several workers"],
    "trainer_of_gluons_own_path": ["the Trainer has kvstore='dist_sync'", "make it without"],
    "trainer_that_steps_on_its_kvstore": ["the Trainer steps inside its kvstore", "update_on_kvstore=False"],
    "trainer_that_compresses": ["the Trainer has compression_params={'type': '2bit'}", "Make it without"],
    "trainer_of_dist_async": ["the Trainer has kvstore='dist_async'", "updates one by one"],
    "other_kvstore": [BEFORE + "kvstore: worker 0 has dist_sync, worker 1 has horovod"],
    "noise": ["the optimizer SGLD draws other noise on each worker"],
    "too_few_for_drop_last": ["9 samples do not fill one batch of 8 for each of 2 workers"],
    "loop_over_other_nets": ["the workers differ in the parameters before update 1", "broadcast_parameters(net)"],
    "not_finite_on_one": ["NonFiniteError: epoch 1, update"],
}


pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def workers(tmp_path_factory):
    return results_of(once(tmp_path_factory, "guards", lambda folder: results("joint_guards.py", folder, 2)))


@pytest.mark.parametrize("name", ERRORS)
def test_all_workers_raise_one_error(workers, name):
    for worker in workers:
        for text in ERRORS[name]:
            assert text in worker[name]
    embedding = "sparse_gradients"  # Gluon numbers its layers in each process
    assert workers[0][name] == workers[1][name] or name == embedding


def test_a_number_that_is_not_finite_stops_all_after_one_update(workers):
    texts = [worker["stops_where_it_is_not_finite"]["stopped"] for worker in workers]
    assert texts[0] == texts[1]
    assert "is not finite" in texts[0]


def test_one_worker_stops_all_after_the_next_update(workers):
    for worker in workers:
        assert worker["stop_by_one"] == {"updates": [4], "stopped": "enough"}
        assert worker["stop_before_the_first_update"] == {"rows": 0}
        assert worker["time_limit"]["updates"] == 6  # the clock of the other one stands still
        assert "time limit of 11 s passed" in worker["time_limit"]["stopped"]


def test_the_first_worker_alone_writes_logs(workers):
    assert workers[0]["logs"]["files"] == ["board-0", "log-0.csv"]
    assert workers[1]["logs"]["files"] == []


def test_dropout_differs_between_workers_and_not_between_runs(workers):
    first, second = (worker["dropout"] for worker in workers)
    assert first["again"]
    assert second["again"]
    assert len(first["masks"]) == len(second["masks"]) > 16
    assert all(one != other for one, other in zip(first["masks"], second["masks"]))
    for path, values in first["result"]["parameters"].items():
        assert values.tobytes() == first["second"]["parameters"][path].tobytes()
        assert values.tobytes() == second["result"]["parameters"][path].tobytes()


def test_evaluation_and_searches_need_no_other_worker(workers):
    assert workers[1]["alone"] == {"recalibrated": ["0"]}
    assert workers[0]["after_all_that"]["rows"] == workers[1]["after_all_that"]["rows"]
