"""Runs what a page of the documentation shows, as its reader would: block after block, in one folder."""

import os
from pathlib import Path
import re
import subprocess
import sys

import mxkit

ROOT = Path(mxkit.__file__).parents[1]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
RUN = ("bash", "python")
SHOWN = ("console", "diff", "text", "yaml")  # what a reader types elsewhere, or sees


def blocks(page, *languages):
    """`(language, code)` of a page's fenced blocks, in order; of all languages, or of those that are named."""
    return [(language, code) for language, code, _ in _found(page) if not languages or language in languages]


def _found(page):
    """`(language, code, line)` of each block."""
    text = page.read_text(encoding="utf-8")
    for match in BLOCK.finditer(text):
        yield match[1], match[2], text.count("\n", 0, match.start(2))


def run_python(page):
    """Run the page's Python alone, as `run_page` does."""
    return run_page(page, None)


def run_page(page, folder):
    """Run the page's Python in one fresh namespace, and between it the commands in `folder`; return the namespace."""
    names = {"__name__": "__main__"}
    for language, code, line in _found(page):
        if language == "python":
            exec(compile("\n" * line + code, str(page), "exec"), names)  # errors tell the page's own line
        elif language == "bash" and folder is not None:
            run_commands(code, folder)
    return names


def run_commands(code, folder):
    """Run lines of bash, in which `mxkit` is this checkout's; return what they print."""
    script = 'mxkit() { "$PYTHON" -m mxkit "$@"; }\n' + code
    done = subprocess.run(
        ["bash", "-ec", script],
        cwd=str(folder),
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHON": sys.executable},
        capture_output=True,
        timeout=300,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
