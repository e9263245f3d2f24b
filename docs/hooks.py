"""What building the pages needs besides mkdocs.yml, which names this file twice: for MkDocs and for mkdocstrings."""

from pathlib import Path
import re
from typing import Any

import griffe

ROOT = Path(__file__).parents[1]
EXAMPLE = re.compile(r"^>>> .*(?:\n(?!\s*$).*)*", re.MULTILINE)


class Examples(griffe.Extension):
    """Fences the examples of docstrings: Markdown would read `>>>` as quotations and `[0.5, 0.1]` as a link."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring:
            obj.docstring.value = EXAMPLE.sub(r"```pycon\n\g<0>\n```", obj.docstring.value)


def on_page_markdown(markdown: str, *, page: Any, **kwargs: Any) -> str:
    """Put CHANGELOG.md, whose links begin at the repository's root, in place of docs/changelog.md."""
    if page.file.src_uri != "changelog.md":
        return markdown
    return (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").replace("](docs/", "](")
