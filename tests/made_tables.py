"""Tables of docs/ that are made by running mxkit.

python tests/made_tables.py                  writes them all
python tests/made_tables.py losses           writes those of docs/losses.md
python tests/made_tables.py losses --check   exit code 1 if one is out of date
"""

from importlib import import_module
from pathlib import Path
import sys

TESTS = Path(__file__).parent
# Page, and the module of its tables with its folder: TABLES has a function for each mark of the page.
PAGES = {"losses": ("loss_table", "."), "metrics": ("table", "metrics"), "recipes": ("vocabulary_table", "recipe")}


def made(page):
    """Path of a page, its text, and the text with its tables made anew."""
    module, folder = PAGES[page]
    sys.path.insert(0, str(TESTS / folder))
    path = TESTS.parent / "docs" / f"{page}.md"
    text = new = path.read_text(encoding="utf-8")
    for mark, lines in import_module(module).TABLES.items():
        begin, end = f"<!-- {mark} -->", f"<!-- end of {mark} -->"
        before, after = new.split(begin)[0], new.split(end)[1]
        new = f"{before}{begin}\n" + "\n".join(lines()).strip() + f"\n{end}{after}"
    return path, text, new


if __name__ == "__main__":
    names = [name for name in sys.argv[1:] if name != "--check"] or list(PAGES)
    pages = [made(name) for name in names]
    if "--check" in sys.argv:
        sys.exit(any(text != new for _, text, new in pages))
    for path, _, new in pages:
        path.write_text(new, encoding="utf-8")
