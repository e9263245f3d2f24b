"""What `import mxkit` costs beside `import mxnet`: fresh interpreters, interleaved, medians with their spread.

Where NumPy is 1.24 or newer plain `import mxnet` fails, so its time is taken with mxkit's hook in place.
"""

import statistics
import subprocess
import sys
import time

ROUNDS = 9
HOOK = "import mxkit.runtime; mxkit.runtime.install(); "


def plain_import_works() -> bool:
    return subprocess.run([sys.executable, "-c", "import mxnet"], stderr=subprocess.DEVNULL).returncode == 0


def seconds(statement: str) -> float:
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", statement], check=True)
    return time.perf_counter() - begun


def main() -> None:
    plain = plain_import_works()
    statements = {
        "python": "pass",
        "import mxnet": "import mxnet" if plain else HOOK + "import mxnet",
        "import mxkit": "import mxkit",
        "import mxkit, mxnet": "import mxkit, mxnet",
        "import mxkit; mxkit.fit": "import mxkit; mxkit.fit",
        "mxkit --version": "from mxkit.cli import main; main(['--version'])",
    }
    taken = {name: [] for name in statements}
    for _ in range(ROUNDS):
        for name, statement in statements.items():
            taken[name].append(seconds(statement))
    base = statistics.median(taken["import mxnet"])
    print(f"Python {sys.version.split()[0]}; plain `import mxnet` {'works' if plain else 'fails: hook in place'}")
    for name, values in taken.items():
        middle = statistics.median(values)
        spread = f"({min(values):.3f} to {max(values):.3f})"
        print(f"{name:26} {middle:6.3f} s  {spread:18} {middle / base:5.2f} x import mxnet")


if __name__ == "__main__":
    main()
