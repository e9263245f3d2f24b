"""Tables of text: every cell as it is, in aligned columns."""

from mxkit.core.system import aligned, console
import pytest

LINES = [["path", "kind", "size"], ["/data/[old]/m", "a kind of many words", "1"], ["[/x]", "日本", "12,000"]]


def test_brackets_are_no_markup_and_wide_characters_count_twice():
    assert aligned(LINES, (0, 1)) == [
        "path           kind                    size",
        "/data/[old]/m  a kind of many words       1",
        "[/x]           日本                  12,000",
    ]


@pytest.mark.parametrize("width", [40, 10])
def test_only_shrinkable_columns_are_cut_and_keep_some_characters(width):
    lines = aligned(LINES, (0, 1), shrinkable=[1], width=width)
    assert [line.split()[0] for line in lines] == ["path", "/data/[old]/m", "[/x]"]
    assert lines[1].split("  ")[1] == ("a kind of many…" if width == 40 else "a kind of m…")
    assert lines[2].endswith("  12,000")


def test_a_long_line_is_whole():
    assert aligned([["reason"], ["word " * 100]])[1] == ("word " * 100).rstrip()


def test_the_console_prints_what_it_is_given(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    console().print("/data/[old]/[/x] :smile: " + "x" * 100, style="bold")
    assert capsys.readouterr().out == "/data/[old]/[/x] :smile: " + "x" * 100 + "\n"
