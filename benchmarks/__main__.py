"""`python -m benchmarks [names] [--quick]`: run the questions, print their tables, keep them beside the code.

Each question is a module with `TITLE` and `run(quick)`, which yields rows. What was measured goes to
benchmarks/results.json, and from there to docs/benchmarks.md and docs/benchmarks.png; questions that are not run keep
their last answers. With `--busy` another process keeps one core busy meanwhile; these answers are kept beside the
others.
"""

import argparse
from contextlib import contextmanager
import datetime
from importlib import import_module
import json
import subprocess
import sys
import time
from typing import Any, Dict, Iterator

from mxkit.recipe.folder import describe_environment

from benchmarks.harness import ROOT, Row
from benchmarks.pages import print_table, write_pages

QUESTIONS = (
    "loops",
    "kernel_share",
    "threads",
    "peers",
    "attention",
    "parts",
    "amp",
    "operators",
    "loaders",
    "detection",
    "features",
    "checkpoints",
    "memory",
    "startup",
    "growth",
    "optimizers",
    "inference",
    "serving",
    "folder",
    "processes",
    "several_workers",
)
RESULTS = ROOT / "benchmarks" / "results.json"


def commit() -> str:
    return subprocess.run(
        ["git", "describe", "--always", "--dirty", "--exclude=*"], cwd=str(ROOT), stdout=subprocess.PIPE, text=True
    ).stdout.strip()


def machine() -> Dict[str, Any]:
    found = describe_environment([])
    versions = found["versions"]
    names = {"mxnet": versions["MXNet"], "numpy": versions["NumPy"], "python": versions["Python"]}
    return {**{name: found[name] for name in ("processor", "cores", "threads")}, **names}


@contextmanager
def busy_core(busy: bool) -> Iterator[None]:
    """Let a process that computes without end run beside this one."""
    beside = [subprocess.Popen([sys.executable, "-c", "while True: pass"])] if busy else []
    try:
        yield
    finally:
        for process in beside:
            process.kill()
            process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(QUESTIONS)}; all by default")
    parser.add_argument("--quick", action="store_true", help="few rounds, small sizes; the results are not kept")
    parser.add_argument("--busy", action="store_true", help="beside a process that keeps one core busy")
    asked = parser.parse_args()
    unknown = [name for name in asked.names if name not in QUESTIONS]
    if unknown:
        parser.error(f"no question {unknown[0]!r}; there are {', '.join(QUESTIONS)}")
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in asked.names or QUESTIONS:
        module = import_module(f"benchmarks.{name}")
        begun = time.perf_counter()
        rows = []
        title = f"{module.TITLE}, one core busy" if asked.busy else module.TITLE
        print(f"\n{title}", flush=True)
        with busy_core(asked.busy):
            for row in module.run(asked.quick):
                rows.append(row)
        print_table(rows)
        results[f"{name} --busy" if asked.busy else name] = {
            "title": title,
            "text": (module.__doc__ or "").strip(),
            "date": datetime.date.today().isoformat(),
            "commit": commit(),
            "machine": machine(),
            "seconds": round(time.perf_counter() - begun),
            "rows": [row._asdict() for row in rows],
        }
        if not asked.quick:
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    if not asked.quick:
        names = [own for name in QUESTIONS for own in (name, f"{name} --busy")]
        ordered = {name: results[name] for name in names if name in results}
        write_pages({name: (one, [Row(**row) for row in one["rows"]]) for name, one in ordered.items()})


if __name__ == "__main__":
    main()
