"""docs/api-table.md has every public name, and a sample of them gives what MXNet alone gives on the oldest pair."""

from pathlib import Path
import re
import sys

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import api_calls  # noqa: E402
import api_names  # noqa: E402
import api_page  # noqa: E402
import api_table  # noqa: E402
import api_values  # noqa: E402
import mxnet as mx  # noqa: E402

# Warnings are compared elsewhere; here they would be results.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.long]
SAMPLE = api_table.read(HERE / "sample.json.gz")["names"]


def names_on_the_page():
    text = api_page.PAGE.read_text(encoding="utf-8").partition("## All names")[2]
    spaces = re.findall(r"\*\*(.+?)\*\*: (.+)", text)
    return {f"{space}.{name}" for space, names in spaces for name in re.findall("`(.+?)`", names)}


def test_the_page_has_every_public_name_and_no_other():
    assert api_names.all_names() == names_on_the_page()


def test_no_row_of_the_page_is_unexplained():
    lines = api_page.PAGE.read_text(encoding="utf-8").partition("## Differences")[0].splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line[:2] == "| "]
    assert [row[0] for row in rows[1:] if row[-1] != "0"] == []
    assert len(rows) == 2 + len(api_names.GROUPS)


@pytest.mark.parametrize("space", SAMPLE)
def test_a_sample_gives_what_mxnet_alone_gives_on_the_oldest_pair(space):
    members, unexplained = api_names.names_of(space), []
    for name, expected in SAMPLE[space].items():
        for label, call in api_calls.calls_of(mx, space, name, members[name]):
            if label in expected:
                result = api_table.outcome(mx, call, api_values.described)
                for item in api_page.differences(expected[label], result).items():
                    if not api_page.reason_of(f"{space}.{name}", "alone newest", *item):  # both comparisons at once
                        unexplained.append((name, label, *item))
    assert unexplained == []


def test_a_difference_is_seen():
    expected = api_values.described({"a": mx.nd.array([1, 2])})
    assert api_values.differences(expected, api_values.described({"a": mx.nd.array([1, 2.00001])})) == {}
    other = api_values.described({"a": mx.nd.array([[1, 2.1]], dtype="float64")})
    assert list(api_values.differences(expected, other)) == ["dtype", "shape", "value"]
    refused = {"error": "TypeError", "text": "no"}
    assert api_page.differences(expected, refused) == {"error": "a result and TypeError: no"}
