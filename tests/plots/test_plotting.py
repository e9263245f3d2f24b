"""Pictures of a run."""

import sys
from types import SimpleNamespace

from mxkit.plots.plotting import plot_history, plot_sweep
import pytest

ROWS = [
    {"epoch": 1, "seconds": 1.0, "train_loss": 0.9, "train_accuracy": 0.5, "valid_loss": 1.0},
    {"epoch": 2, "seconds": 1.0, "train_loss": 0.5, "train_accuracy": 0.75, "valid_loss": None},
    {"epoch": 3, "seconds": 1.0, "train_loss": 0.4, "train_accuracy": 0.8, "valid_loss": 0.6},
]


def test_lines_are_the_columns_and_gaps_are_left_out():
    loss, accuracy = plot_history(ROWS).axes
    assert [axes.get_title() for axes in (loss, accuracy)] == ["loss", "accuracy"]
    drawn = [(list(line.get_xdata()), list(line.get_ydata())) for line in loss.lines]
    assert drawn == [([1, 2, 3], [0.9, 0.5, 0.4]), ([1, 3], [1.0, 0.6])]
    assert [text.get_text() for text in loss.get_legend().get_texts()] == ["train 0.4", "valid 0.6"]
    assert len(accuracy.lines) == 1
    with pytest.raises(ValueError, match="plot: the history has no epoch yet"):
        plot_history([])


@pytest.mark.parametrize(("last", "scale"), [(0.1, "linear"), (0.001, "log"), (0.0, "linear")])
def test_a_loss_that_falls_far_is_drawn_on_a_log_scale(last, scale):
    rows = [{"epoch": 1, "train_loss": 1.0}, {"epoch": 2, "train_loss": last}]
    assert plot_history(rows).axes[0].get_yscale() == scale


@pytest.mark.parametrize(("name", "magic"), [("run.png", b"\x89PNG"), ("run.svg", b"<?xml"), ("run.pdf", b"%PDF")])
def test_the_suffix_decides_the_format_and_pyplot_is_left_alone(tmp_path, name, magic):
    had = "matplotlib.pyplot" in sys.modules
    plot_history(ROWS, str(tmp_path / name))
    assert (tmp_path / name).read_bytes().startswith(magic)
    assert ("matplotlib.pyplot" in sys.modules) == had


def test_every_figure_shows_itself_in_a_notebook():
    from mxkit.training.rehearsal import LearningRateSearch

    search = LearningRateSearch([10.0**i for i in range(-12, 0)], [2.0 - 0.1 * i for i in range(12)])
    assert search.plot()._repr_png_().startswith(b"\x89PNG")


def test_a_sweep_is_drawn_with_the_keys_along_the_axes():
    trials = [
        SimpleNamespace(name="trial", chosen={"lr": lr}, value=value, state="finished")
        for lr, value in ((0.1, 2.0), (0.3, 4.0))
    ]
    (axes,) = plot_sweep(trials, column="valid_loss", mode="min").axes
    assert [points.get_offsets().tolist() for points in axes.collections] == [[[0.1, 2.0]], [[0.3, 4.0]]]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("lr", "valid_loss")
