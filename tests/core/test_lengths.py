from mxkit.core.arguments import Length, length
import numpy as np
import pytest

UNITS = ("epochs", "updates", "samples", "batches", "minutes")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("2 epochs", (2, "epochs")),
        (" 1epoch ", (1, "epochs")),
        ("1 batch", (1, "batches")),
        ("256 samples", (256, "samples")),
        (".5 minutes", (0.5, "minutes")),
        ("2.0 updates", (2, "updates")),
        (np.int64(7), (7, "batches")),
        (Length(3, "updates"), (3, "updates")),
    ],
)
def test_a_length_has_a_number_and_a_unit(value, expected):
    found = length(value, "every", UNITS, "batches")
    assert found == expected
    assert type(found.number) is type(expected[0])


def test_a_length_is_printed_as_it_is_read():
    for text in ("1 epoch", "2 epochs", "0.5 minutes", "1 batch", "500 updates"):
        assert str(length(text, "every", UNITS)) == text


@pytest.mark.parametrize(
    "value",
    ["", "2", "epochs", "2 parsecs", "-2 epochs", "0 epochs", "1e3 updates", True, None, 0, -1, float("nan"), 3],
)
def test_other_values_are_refused_with_the_units_of_the_place(value):
    with pytest.raises(ValueError, match="every: expected a length like '2 epochs' or '500 updates'; received") as told:
        length(value, "every", ("epochs", "updates"))
    assert repr(value) in str(told.value)


def test_what_else_a_place_accepts_is_told():
    with pytest.raises(ValueError, match="fit: epochs: expected a length like '2 epochs', or a number of epochs; rec"):
        length("2 updates", "fit: epochs", ("epochs",), "epochs")
    with pytest.raises(ValueError, match="warmup: expected a length like '2 epochs', or 0; received 3"):
        length(3, "warmup", ("epochs",), zero=True)
    assert length(0, "warmup", ("epochs", "updates"), zero=True).number == 0


def test_fractions_are_a_question_of_the_unit():
    with pytest.raises(ValueError, match="every: updates are counted in whole numbers; received '2.5 updates'"):
        length("2.5 updates", "every", UNITS)
    with pytest.raises(ValueError, match="every: epochs are counted in whole numbers"):
        length("0.5 epochs", "every", UNITS)
    assert length("0.5 epochs", "warmup", UNITS, fractions=("epochs",)) == (0.5, "epochs")
