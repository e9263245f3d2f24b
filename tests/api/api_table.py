"""The table of docs/api-table.md: every public name of MXNet and GluonCV, called under several Pythons.

    python tests/api/api_table.py call OUT.json.gz            calls every name under this Python
    python tests/api/api_table.py call OUT.json.gz --plain    MXNet alone; NumPy before 1.24 only
    python tests/api/api_table.py page PLAIN OLDEST NEWEST    compares, and writes the page; 1 if a row is unexplained

Names are called in children, a namespace each, with the same seeds before every call. Where a call ends the process, the
next child goes on after it.
"""

import argparse
import gzip
import json
import os
from pathlib import Path
import signal
import subprocess
import sys

import api_names

SECONDS = 60


def calls_of(mx, space, name, member):
    """The calls of one name: a label and a function each; a text instead says why it is not called."""
    import api_calls

    return api_calls.calls_of(mx, space, name, member)


def run_space(space, after, written=False):
    """Call the names of a namespace in this process, and write a line of JSON for each call.

    Args:
        after: Name and label of the call that ended the process before; all up to it are left out.
        written: Whether only the calls of calls/*.txt are made.
    """
    import warnings

    import api_values
    import mxnet as mx

    warnings.simplefilter("ignore")
    waiting = after is not None
    for name, member in api_names.names_of(space).items():
        calls = calls_of(mx, space, name, member)
        if isinstance(calls, str):
            if not waiting:
                write({"name": name, "reason": calls})
            continue
        for label, call in calls:
            if written and label.isdigit():
                continue
            if waiting:
                waiting = [name, label] != after
                continue
            write({"begin": [name, label]})
            signal.alarm(SECONDS)
            write({"name": name, "label": label, "result": outcome(mx, call, api_values.described)})


def outcome(mx, call, described):
    """What a call gives, as JSON, or the type of its error."""
    import random

    import numpy as np

    random.seed(1)
    np.random.seed(1)
    mx.random.seed(1)
    try:
        return described(call())
    except Exception as error:
        try:
            mx.nd.waitall()
        except Exception:  # noqa: S110
            pass
        return {"error": type(error).__name__, "text": str(error).strip().split("\n")[-1][-160:]}


def write(line):
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def called(space, flags):
    """Call a namespace's names in children; for each name its results by label."""
    found, after, begun = {}, None, None
    while True:
        command = [sys.executable, "-W", "ignore", __file__, "child", space, json.dumps(after)]
        command += flags
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)
        for text in done.stdout.splitlines():
            if not text.startswith("{"):
                continue
            line = json.loads(text)
            if "begin" in line:
                begun = line["begin"]
            elif "reason" in line:
                found[line["name"]] = line["reason"]
            else:
                found.setdefault(line["name"], {})[line["label"]] = line["result"]
        if done.returncode == 0:
            return found
        if begun is None or begun == after:
            raise SystemExit(f"{space}: {done.stderr[-2000:]}")
        found.setdefault(begun[0], {})[begun[1]] = {"died": done.returncode}
        after = begun


def call(arguments):
    """Call everything, and write the results to a file."""
    import numpy as np

    if not arguments.plain:
        import mxkit  # noqa: F401
    results = {"python": sys.version.split()[0], "numpy": np.__version__, "plain": arguments.plain, "names": {}}
    path = Path(arguments.file)
    if path.exists() and arguments.spaces:
        results["names"] = read(path)["names"]
    for space in arguments.spaces or api_names.spaces():
        one = called(space, [f"--{name}" for name in ("plain", "written") if getattr(arguments, name)])
        results["names"][space] = one
        sys.stderr.write(f"{space}: {len(one)} names, {sum(len(calls) for calls in one.values())} calls\n")
        with gzip.open(str(path), "wt") as file:
            json.dump(results, file, sort_keys=True)


def read(path):
    with gzip.open(str(path), "rt") as file:
        return json.load(file)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("call", "page", "child"))
    parser.add_argument("file")
    parser.add_argument("spaces", nargs="*")
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--written", action="store_true", help="no generated arguments")
    arguments = parser.parse_args()
    if arguments.what == "child":
        # A library's own prints go elsewhere than the lines of JSON.
        sys.stdout = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        if not arguments.plain:
            import mxkit  # noqa: F401
        run_space(arguments.file, json.loads(arguments.spaces[0]), arguments.written)
        sys.stdout.flush()
        os._exit(0)
    if arguments.what == "call":
        call(arguments)
    else:
        import api_page

        sys.exit(api_page.write([read(path) for path in [arguments.file, *arguments.spaces]]))


if __name__ == "__main__":
    main()
