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
    assert length(str(found), "every", UNITS) == found


@pytest.mark.parametrize(
    "value",
    ["", "2", "epochs", "2 parsecs", "-2 epochs", "0 epochs", "1e3 updates", True, None, 0, -1, float("nan"), 3],
)
def test_other_values_are_refused_with_the_units_of_the_place(value):
    with pytest.raises(ValueError, match="every: expected a length like '2 epochs' or '500 updates'; received") as told:
        length(value, "every", ("epochs", "updates"))
    assert repr(value) in str(told.value)


@pytest.mark.parametrize(
    ("value", "name", "units", "options", "text"),
    [
        ("2 updates", "fit: epochs", ("epochs",), {"default_unit": "epochs"}, "'2 epochs', or a number of epochs; rec"),
        (3, "warmup", ("epochs",), {"zero": True}, "expected a length like '2 epochs', or 0; received 3"),
        ("2.5 updates", "every", UNITS, {}, "every: updates are counted in whole numbers; received '2.5 updates'"),
    ],
)
def test_what_else_a_place_accepts_is_told(value, name, units, options, text):
    with pytest.raises(ValueError, match=text):
        length(value, name, units, **options)


def test_zero_and_fractions_are_read_where_they_are_allowed():
    assert length(0, "warmup", ("epochs", "updates"), zero=True).number == 0
    assert length("0.5 epochs", "warmup", UNITS, fractions=("epochs",)) == (0.5, "epochs")
