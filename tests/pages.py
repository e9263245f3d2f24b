"""Runs what a page of the documentation shows, as its reader would: block after block, in one folder."""

import os
from pathlib import Path
import re
import shlex
import subprocess
import sys

import mxkit
import mxnet as mx

ROOT = Path(mxkit.__file__).parents[1]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
RUN = ("bash", "python")
PROGRAMS = {
    "mxkit": "pages:main_without_curves",
    "mxkit.exporting.params": "mxkit.exporting.params:main",
    "mxkit.data.records": "mxkit.data.records:main",
}
SHOWN = ("console", "diff", "text", "toml", "yaml")  # what a reader types elsewhere, or sees


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


def run_page(page, folder, forks=None):
    """Run the page's Python in one fresh namespace, and between it the commands in `folder`; return the namespace."""
    names = {"__name__": "__main__"}
    try:
        for language, code, line in _found(page):
            if language == "python":
                exec(compile("\n" * line + code, str(page), "exec"), names)  # errors tell the page's own line
            elif language == "bash" and folder is not None:
                run_commands(code, folder, forks, brief=True)
    finally:
        mx.npx.reset_np()  # the page may have called npx.set_np()
    return names


def run_commands(code, folder, forks=None, brief=False):
    """Run `mxkit` or `python -m MODULE`, with quotes and `*`, in processes of their own; return what they print.

    Args:
        brief: A training has one epoch.
    """
    printed = []
    for line in filter(str.strip, code.replace("\\\n", " ").splitlines()):
        command, *words = shlex.split(line, comments=True)
        module, words = (words[1], words[2:]) if [command, *words[:1]] == ["python", "-m"] else (command, words)
        assert module in PROGRAMS, line
        words = [found for word in words for found in _expanded(word, folder)]
        if brief and words[0] == "train" and "--resume" not in words:
            words += ["--set", "epochs=1"]
        done = forks.run(PROGRAMS[module], words, folder=folder) if forks else _run(module, words, folder)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        printed.append(done.stdout)
    return "".join(printed)


def main_without_curves(words):
    """The `mxkit` command, in a process that ends with it."""
    from mxkit.cli import main
    from mxkit.training.history import History

    History.plot = lambda *arguments: None
    main(words)


def _expanded(word, folder):
    return sorted(str(path.relative_to(folder)) for path in folder.glob(word)) if "*" in word else [word]


def _run(module, words, folder):
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", module, *words]
    return subprocess.run(command, cwd=str(folder), env=variables, capture_output=True, timeout=300, text=True)
