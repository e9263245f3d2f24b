"""`python -m mxkit.runtime.doctor [--json]`: the report with nothing but the standard library and mxkit's root."""

import sys

from mxkit.runtime.doctor import render, report, to_json

if __name__ == "__main__":
    found = report()
    sys.stdout.write((to_json(found) if "--json" in sys.argv[1:] else render(found)) + "\n")
    sys.exit(1 if found.problems else 0)
