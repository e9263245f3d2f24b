"""`python -m mxkit.runtime.doctor [--json]`: the report with nothing but the standard library.

`python PATH/mxkit/runtime/doctor` runs even without mxkit's own dependencies.
"""

from pathlib import Path
import sys


def _prepare() -> None:
    here = Path(__file__).resolve().parent
    if not __package__:  # run as a folder, which Python puts first into sys.path
        sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != here]
        sys.path.append(str(here.parents[2]))
    # `mxkit/__init__.py` has not run if this is a folder.
    from types import ModuleType

    root = ModuleType("mxkit")
    root.__path__ = [str(here.parents[1])]
    sys.modules.setdefault("mxkit", root)


def main() -> int:
    """Print the report; 1 if there is a problem."""
    _prepare()
    from mxkit.runtime.doctor import render, report, to_json

    found = report()
    sys.stdout.write((to_json(found) if "--json" in sys.argv[1:] else render(found)) + "\n")
    return 1 if found.problems else 0


if __name__ == "__main__":
    sys.exit(main())
