"""What a run ran on is kept in its folder, by the run itself."""

import json
import os
import platform

from mxkit.recipe.environment import describe_environment, record_environment
from mxkit.recipe.run import resume_run
from mxkit.reports.page import write_report
from mxkit.runtime.threads import in_force
import mxnet as mx


def test_a_run_keeps_what_it_ran_on(adam):
    (found,) = json.loads((adam / "environment.json").read_text())
    assert found["versions"]["MXNet"] == mx.__version__
    assert found["versions"]["Python"] == platform.python_version()
    assert found["platform"] == platform.platform()
    assert found["devices"] == ["cpu(0)"]
    assert found["gpus"] == []
    features = mx.runtime.Features()
    assert set(found["features"]) == {name for name in features if features.is_enabled(name)}
    assert found["memory"] > 2**28
    assert found["cores"] >= 1


def test_threads_and_variables_are_those_of_the_process(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")  # MXNet read it when it was loaded
    monkeypatch.setenv("MXNET_ENGINE_TYPE", "NaiveEngine")
    monkeypatch.setenv("SECRET_TOKEN", "never written")
    found = describe_environment([mx.cpu(1)])
    assert found["threads"] == in_force() != 7
    assert found["variables"]["MXNET_ENGINE_TYPE"] == "NaiveEngine"
    assert "SECRET_TOKEN" not in found["variables"]
    assert all(os.environ[name] == value for name, value in found["variables"].items())


def test_another_environment_is_added_and_the_same_is_not(tmp_path, monkeypatch):
    record_environment(tmp_path, [mx.cpu()])
    before = (tmp_path / "environment.json").read_text()
    record_environment(tmp_path, [mx.cpu()])
    assert (tmp_path / "environment.json").read_text() == before
    record_environment(tmp_path, [mx.cpu(0), mx.cpu(1)])
    found = json.loads((tmp_path / "environment.json").read_text())
    assert [one["devices"] for one in found] == [["cpu(0)"], ["cpu(0)", "cpu(1)"]]


def test_a_run_gone_on_with_elsewhere_shows_both(adam, copied, tmp_path, read_page):
    folder = copied(adam)
    file = folder / "environment.json"
    (first,) = json.loads(file.read_text())
    file.write_text(json.dumps([{**first, "platform": "another machine"}]))
    resume_run(folder, overrides=["epochs=3"], progress=False)
    found = json.loads(file.read_text())
    assert [one["platform"] for one in found] == ["another machine", platform.platform()]
    page = read_page(write_report([folder], tmp_path / "page.html"))
    assert "another machine" in page.text
    assert [one for one in page.headings if one.startswith(("At first, since", "Gone on with, since"))]
