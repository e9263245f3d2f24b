"""Schedules against their formulas, and against MXNet's own schedulers called once an update."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st
from mxkit.training.schedules import get_schedule, schedule
from mxnet import lr_scheduler as theirs
import pytest
from sharing import examples

SCHEDULES = [
    schedule("constant", base=0.3, warmup="1 epoch"),
    schedule("step", base=0.3, every="0.5 epochs", factor=0.5),
    schedule("step", base=0.3, every="1 update", factor=0.9, final=0.1),
    schedule("multi_step", base=0.3, at=["7 updates", "2 epochs"], warmup="4 updates"),
    schedule("poly", base=0.3, total="3 epochs", power=1.5, final=0.01, warmup="3 updates"),
    schedule("cosine", base=0.3, total="31 updates", warmup="1 epoch"),
    schedule("one_cycle", base=0.3, total="3 epochs"),
]


@pytest.mark.parametrize(
    ("ours", "made"),
    [
        (
            schedule("step", base=0.3, every="5 updates", warmup="4 updates"),
            lambda: theirs.FactorScheduler(5, 0.1, 0, 0.3, 4),
        ),
        (
            schedule("multi_step", base=0.3, at=["1 epoch", "22 updates"], warmup="3 updates"),
            lambda: theirs.MultiFactorScheduler([10, 22], 0.1, 0.3, 3),
        ),
        (
            schedule("poly", base=0.3, total="2.5 epochs", warmup="0.5 epochs", final=0.02),
            lambda: theirs.PolyScheduler(25, 0.3, 2, 0.02, 5),
        ),
        (schedule("cosine", base=0.3, total="3 epochs"), lambda: theirs.CosineScheduler(30, 0.3)),
    ],
)
def test_equals_mxnets_scheduler_called_once_an_update(ours, made):
    stepped = made()
    # an optimizer counts its first update as number 1 before it asks
    assert ours.rates(60, 10) == [stepped(number) for number in range(1, 61)]


def test_closed_forms():
    assert schedule("constant", base=1.0, warmup="4 updates").rates(6) == [0.25, 0.5, 0.75, 1, 1, 1]
    poly = schedule("poly", base=1.0, total="10 updates", power=3, final=0.5)
    assert poly.rates(12) == pytest.approx([0.5 + 0.5 * (1 - min(t, 10) / 10) ** 3 for t in range(1, 13)])


def test_one_cycle_is_two_halves_of_a_cosine():
    rates = schedule("one_cycle", base=1.0, start=0.2, final=0.1, warmup="4 updates", total="10 updates").rates(12)
    up = [0.2 + 0.8 * (1 - math.cos(math.pi * t / 4)) / 2 for t in range(1, 5)]
    down = [0.1 + 0.9 * (1 + math.cos(math.pi * t / 6)) / 2 for t in range(1, 7)]
    assert rates == pytest.approx([*up, *down, 0.1, 0.1])
    assert max(schedule("one_cycle", base=0.5, total="2 epochs").rates(20, 10)) == 0.5


@settings(max_examples=examples(100))
@given(
    st.sampled_from(SCHEDULES),
    st.lists(st.tuples(st.integers(0, 60), st.sampled_from([8, 10])), min_size=1, max_size=8),
)
def test_the_rate_depends_on_no_earlier_question(one, questions):
    """T21."""
    for done, updates_per_epoch in questions:
        fresh = schedule_like(one)
        in_order = [fresh.rate(earlier, updates_per_epoch) for earlier in range(done + 1)][-1]
        assert one.rate(done, updates_per_epoch) == in_order


def schedule_like(one):
    return get_schedule(one).completed(1.0)  # a copy, with nothing asked


@pytest.mark.parametrize("name", ["poly", "cosine", "one_cycle"])
def test_a_first_question_past_the_end_gives_the_final_rate(name):
    # MXNet's own, made anew as after a restart, answers with the base rate
    """T21."""
    assert theirs.CosineScheduler(10, 0.3)(11) == 0.3
    assert schedule(name, base=0.3, total="10 updates", final=0.05).rate(500) == pytest.approx(0.05)


def test_lengths_in_epochs_are_rounded_to_updates():
    def warm(warmup, per_epoch=7):
        return [round(rate * 4) for rate in schedule("constant", base=1, warmup=warmup).rates(4, per_epoch)]

    assert warm(".5 epochs") == warm("4 updates", None) == [1, 2, 3, 4]
    assert warm("0.01 epochs") == warm(0, None) == warm("0 epochs", None) == [4, 4, 4, 4]


def test_what_is_not_said_is_completed_once():
    open_end = schedule("cosine")
    assert open_end.completed(0.1, "2 epochs") == schedule("cosine", base=0.1, total="2 epochs")
    assert schedule("cosine", base=0.5, total="3 updates").completed(0.1, "2 epochs").base == 0.5
    assert schedule("constant").completed(0.1, "2 epochs") == schedule("constant", base=0.1)
