"""A run that several files ask, and a Predictor whose net waits."""

from asking_threads import Gate
import mxkit
import pytest


@pytest.fixture(scope="session")
def digits_run(tmp_path_factory):
    folder, settings = tmp_path_factory.mktemp("runs"), ["epochs=1", "devices=cpu"]
    return mxkit.run_recipe("digits_lenet", overrides=settings, output=folder, progress=False).folder


@pytest.fixture
def gate():
    net = Gate()
    with mxkit.Predictor(net, sample=[0.0], max_batch=4, max_queue=6) as predictor:
        yield net, predictor
        net.open.set()
