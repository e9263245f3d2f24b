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


# Pages of the site that stand at the repository's root, where GitHub shows them.
AT_THE_ROOT = {"changelog.md": "CHANGELOG.md", "contributing.md": "CONTRIBUTING.md"}


def on_page_markdown(markdown: str, *, page: Any, **kwargs: Any) -> str:
    """Put a file of the repository's root in place of its page, and turn its links into those of the site."""
    if page.file.src_uri not in AT_THE_ROOT:
        return markdown
    text = (ROOT / AT_THE_ROOT[page.file.src_uri]).read_text(encoding="utf-8").replace("](docs/", "](")
    for name, source in AT_THE_ROOT.items():
        text = text.replace(f"]({source})", f"]({name})")
    return text
