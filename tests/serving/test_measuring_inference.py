"""`measure_inference` and `mxkit benchmark`: a run's net in every precision, against the net as trained."""

import json
from pathlib import Path
import shutil

from built_nets import plain_net, ready, stack
import mxkit
from mxkit.recipe.data_checks import load_data
from mxkit.recipe.net_facts import InputForm
from mxkit.recipe.run import load_run
from mxkit.serving import measuring_inference
from mxkit.serving.measuring_inference import BASE, measure_inference
from mxkit.serving.optimizing import in_turns
import mxnet as mx
import numpy as np
from PIL import Image
import pytest
from sharing import command

SHORT = {"batch_sizes": (1, 4, 1), "seconds": 0.01}


@pytest.fixture(scope="module")
def measured(photo_run):
    return measure_inference(photo_run, **SHORT)


def test_every_form_has_a_row_for_each_batch_size_or_a_reason(measured, photo_run):
    forms = [form for form in (BASE, "float32", "bfloat16", "int8") if form not in measured.refused]
    assert {"float32", "int8"} <= {*forms, *measured.refused}
    assert [(row.form, row.batch) for row in measured.rows] == [(form, size) for form in forms for size in (1, 4)]
    for row in measured.rows:
        assert 0 < row.p50_ms <= row.p99_ms
        assert row.calls >= 5
        assert 0 <= row.agreement <= 1
    assert [(row.speed, row.agreement) for row in measured.rows[:2]] == [(1.0, 1.0)] * 2
    assert measured.compared == len(load_data(load_run(photo_run)[0]).test)


def test_agreement_counts_the_samples_with_the_same_answer(photo_run):
    recipe, net = load_run(photo_run)
    other = ready(mxkit.models.lenet(classes=2), sample=mx.nd.zeros((1, 3, 20, 20)))
    forms = {name: measuring_inference._Form(one, {}) for name, one in ((BASE, net), ("other", other))}
    read = [(mx.nd.random.uniform(shape=(size, 3, 20, 20)),) for size in (30, 7)]
    said = measuring_inference._answers(recipe, ["day", "night"], net, read)
    found = measuring_inference._agreement(recipe, ["day", "night"], forms, read, said)
    classes = [np.concatenate([one(*x).asnumpy().argmax(1) for x in read]) for one in (net, other)]
    assert found == {BASE: 1.0, "other": (classes[0] == classes[1]).mean()}
    assert measuring_inference._answers(recipe, [], net, []) == []
    assert measuring_inference._agreement(recipe, [], forms, [], []) == {}


def test_answers_of_several_labels_agree_as_sets_and_quantities_do_not_count(photo_run):
    decision = measuring_inference._decision
    assert decision({"class": "day", "probability": 0.6}) == decision({"class": "day", "probability": 0.9}) == "day"
    assert decision({"probabilities": {"a": 0.6, "b": 0.2}}) == [True, False]
    assert decision({"scores": {"a": 0.2, "b": -0.2}}) == [True, False]
    recipe, net = load_run(photo_run)
    quantities = recipe.model_copy(update={"loss": type(recipe.loss)(name="l2")})
    forms, read = {BASE: measuring_inference._Form(net, {})}, [(mx.nd.ones((2, 3, 20, 20)),)]
    said = measuring_inference._answers(quantities, [], net, read)
    assert measuring_inference._agreement(quantities, [], forms, read, said) == {}


def test_inputs_are_the_first_samples_and_begin_again_if_there_are_too_few():
    read = [(mx.nd.array([[0.0], [1.0]]), mx.nd.array([5, 6], dtype="int32")), (mx.nd.array([[2.0]]), mx.nd.array([7]))]
    two, five = measuring_inference._inputs(read, [], (2, 5), False).values()
    assert two[0].asnumpy().tolist() == [[0], [1]]
    assert five[0].asnumpy().ravel().tolist() == [0, 1, 2, 0, 1]
    assert five[1].asnumpy().tolist() == [5, 6, 7, 5, 6]
    shapes = [InputForm((1, 3, 4), "float32"), InputForm((1, 2), "int32")]
    drawn = measuring_inference._inputs([], shapes, (3,), True)[3]
    assert [(one.shape, str(np.dtype(one.dtype))) for one in drawn] == [((3, 3, 4), "float32"), ((3, 2), "int32")]
    assert all(isinstance(one, mx.np.ndarray) for one in drawn)


def test_forms_take_turns_and_another_begins_each_round():
    order = []
    nets = {name: lambda x, name=name: order.append(name) or x + 1 for name in "abc"}
    after = [{len(each) for each in timed.values()} for timed in in_turns(nets, (mx.nd.ones(2),), 1e-9, 5)]
    assert after == [{1}, {2}, {3}, {4}, {5}]
    assert "".join(order) == "abcbcacababcbca"
    timed = {BASE: [[0.1, 0.3], [0.2], [0.4]], "b": [[0.1], [0.2, 0.2], [0.1]]}
    row = measuring_inference._row("b", 8, timed, 7.0, None)
    assert row[:6] == ("b", 8, pytest.approx(150), pytest.approx(200, rel=0.02), pytest.approx(80), pytest.approx(2))
    assert row[6:] == (7.0, None, 4)


def test_memory_grows_with_the_arrays_of_a_net():
    held = []

    def net(x):
        held.append(mx.nd.ones((10_000_000,)))
        return held[-1]

    before = measuring_inference._resident()
    grown = measuring_inference._growth(net, {1: (mx.nd.ones(1),), 2: (mx.nd.ones(1),)}, before)
    assert grown[1] == pytest.approx(80, abs=15)
    assert grown[2] == pytest.approx(160, abs=15)


def test_a_run_without_its_data_is_measured_on_random_inputs(photo_run, tmp_path):
    moved = tmp_path / "moved"
    shutil.copytree(str(photo_run), str(moved))
    recipe = moved / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace(str(photo_run.parents[1]), "/nowhere"))
    measured = measure_inference(moved, **SHORT, precisions=("int8",))
    assert [row.agreement for row in measured.rows] == [None, None]
    assert "int8" in measured.refused
    assert "the run's data cannot be read, so inputs are random" in str(measured)
    assert "int8 was not measured: " in str(measured)
    assert measured.compared == 0


def test_a_net_without_a_graph_is_measured_as_trained_only(photo_run, monkeypatch):
    net = ready(
        stack(plain_net(lambda net, x: x * float(x.shape[1])), mx.gluon.nn.Dense(2), kind=mx.gluon.nn.Sequential)
    )
    monkeypatch.setattr(measuring_inference, "load_run", lambda *run: (load_run(*run)[0], net))
    measured = measure_inference(photo_run, **SHORT, precisions=("float32",))
    assert [row.form for row in measured.rows] == [BASE, BASE]
    assert list(measured.refused) == ["float32"]


def test_a_refusal_of_mxnet_is_told_by_its_reason(photo_run, monkeypatch):
    def refusing(*_):
        return mx.nd.dot(mx.nd.ones((2, 3)), mx.nd.ones((2, 3)))

    monkeypatch.setattr(measuring_inference, "_optimized", refusing)
    measured = measure_inference(photo_run, **SHORT, precisions=("float32",))
    assert measured.refused == {"float32": "dot shape error: [2,3] X [2,3]"}


def test_wrong_arguments_are_refused(photo_run):
    for options, text in (
        ({"precisions": ["float16"]}, "precision: expected float32, bfloat16, int8; received 'float16'"),
        ({"batch_sizes": [0]}, "batch: expected a whole number, at least 1; received 0"),
        ({"seconds": -1}, "seconds: expected a finite number, at least 0; received -1"),
    ):
        with pytest.raises(ValueError, match=text):
            measure_inference(photo_run, **options)


def test_ctrl_c_shows_what_was_measured(photo_run, monkeypatch):
    def interrupted(nets, arrays, seconds, rounds):
        for number, timed in enumerate(in_turns(nets, arrays, seconds, rounds)):
            if number == 2 and len(arrays[0]) == 4:
                raise KeyboardInterrupt
            yield timed

    monkeypatch.setattr(measuring_inference, "in_turns", interrupted)
    code, out, err = command("benchmark", photo_run, "--precision", "float32", "--batch", "1,4,8", "--seconds", "0.01")
    assert code == 130, err
    rows = [line.split()[:2] for line in out.splitlines()]
    assert [row for row in rows if row[0] == "float32"] == [["float32", "1"], ["float32", "4"]]
    assert "interrupted after 2 of 5 rounds of batch 4" in out
    monkeypatch.setattr(measuring_inference, "in_turns", lambda *arguments: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt) as caught:  # there is nothing yet
        measure_inference(photo_run, **SHORT, precisions=())
    assert not isinstance(caught.value, mxkit.serving.InterruptedMeasurement)


def test_the_command_prints_the_table_and_writes_picture_and_figures(photo_run, tmp_path):
    picture, figures = tmp_path / "speed.png", tmp_path / "speed.json"
    words = ["--precision", "float32", "--batch", "1,2", "--seconds", "0.01", "--png", picture, "--json", figures]
    code, out, err = command("benchmark", photo_run, *words)
    assert (code, err) == (0, "")
    head, names, *rows = out.splitlines()
    assert head.endswith(f"threads; agreement over {len(load_data(load_run(photo_run)[0]).test)} samples")
    assert names.split()[:4] == ["form", "batch", "p50", "ms"]
    assert [row.split()[:3] for row in rows[:2]] == [["as", "trained", "1"], ["as", "trained", "2"]]
    assert rows[-1] == f"picture {picture}"
    read = json.loads(figures.read_text())
    assert [(row["form"], row["batch"]) for row in read["rows"][:2]] == [(BASE, 1), (BASE, 2)]
    with Image.open(str(picture)) as image:
        colours = {colour for _, colour in image.convert("RGB").getcolors(1 << 24)}
    assert {(140, 140, 140), (0x4C, 0x72, 0xB0)} <= colours
    for wrong, text in (
        (["--batch", "1,x"], "batch: expected a whole number"),
        (["--precision", "int4"], "int4"),
        (["--png", tmp_path / "speed.txt"], "expected a file like speed.png"),
    ):
        code, out, err = command("benchmark", photo_run, *wrong)
        assert (code, out, text in " ".join(err.replace("│", " ").split())) == (2, "", True), err
    assert command("benchmark", Path(photo_run).parent)[0] == 2
