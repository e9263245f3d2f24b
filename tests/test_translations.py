"""Each Chinese page has the code, the headings and the figures of its English one, and links that lead somewhere."""

import re

from pages import ROOT
import pytest

DOCS, CHINESE = ROOT / "docs", ROOT / "docs" / "zh"
# Its Chinese page is docs/zh/from-d2l.md, which is longer.
WITHOUT = {"from-d2l.md"}
COOKBOOK = sorted({page.name for page in (DOCS / "cookbook").glob("*.md")} - WITHOUT)
PAIRS = [(ROOT / "README.md", ROOT / "README.zh.md")]
PAIRS += [(DOCS / name, CHINESE / name) for name in ("getting-started.md", "faq.md", "libraries.md")]
PAIRS += [(DOCS / "cookbook" / name, CHINESE / "cookbook" / name) for name in COOKBOOK]
BLOCK = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
NAME = re.compile(r"`([^`]+)`")


@pytest.mark.parametrize(("english", "chinese"), [pytest.param(*pair, id=pair[1].name) for pair in PAIRS])
def test_a_chinese_page_has_the_code_and_the_headings_of_the_english_one(english, chinese):
    texts = [page.read_text(encoding="utf-8") for page in (english, chinese)]
    first, second = (BLOCK.findall(text) for text in texts)
    assert first == second
    first, second = (re.findall(r"^(#+) ", BLOCK.sub("", text), re.MULTILINE) for text in texts)
    assert first == second
    lines = [BLOCK.sub("", text) for text in texts]
    first, second = ({re.sub(r"\s", "", name) for name in NAME.findall(text)} for text in lines)
    assert first == second
    first, second = (sorted(re.findall(r"\d+(?:\.\d+)+", NAME.sub("", text))) for text in lines)
    assert first == second


@pytest.mark.parametrize("page", [pytest.param(chinese, id=chinese.name) for _, chinese in PAIRS])
def test_links_of_a_chinese_page_lead_to_chinese_pages_where_they_exist(page):
    text = NAME.sub("", BLOCK.sub("", page.read_text(encoding="utf-8")))
    for link in re.findall(r"\]\((?!https?:)([^)#]+)", text):
        found = (page.parent / link).resolve()
        assert found.exists(), link
        assert link == "README.md" or found not in dict(PAIRS), link


def test_each_chinese_page_of_the_cookbook_has_an_english_one():
    assert sorted(page.name for page in (CHINESE / "cookbook").glob("*.md")) == COOKBOOK
