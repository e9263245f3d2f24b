"""The table of docs/api-table.md: every public name of MXNet and GluonCV, called under several Pythons.

    python tests/api/api_table.py call OUT.json.gz            calls every name under this Python
    python tests/api/api_table.py call OUT.json.gz --plain    MXNet alone; NumPy before 1.24 only
    python tests/api/api_table.py page PLAIN OLDEST NEWEST    writes the page; exit code 1 if a row is unexplained
    python tests/api/api_table.py sample PLAIN                keeps what `make long` compares with, sample.json.gz

Names are called in children, a namespace each, with the same seeds before every call. Where a call ends the process,
the next child goes on after it.
"""

import argparse
from contextlib import suppress
import gzip
import json
import os
from pathlib import Path
import signal
import subprocess
import sys

import api_calls
import api_names

SECONDS = 60


def run_spaces(spaces, after):
    """Call the names of namespaces in this process, and write a line of JSON for each call.

    Args:
        after: Name and label of the call that ended the process before; all up to it are left out.
    """
    import warnings

    import api_values
    import mxnet as mx

    warnings.simplefilter("ignore")
    waiting = after is not None
    names = ((one, *item) for one in spaces for item in api_names.names_of(one).items())
    for space, name, member in names:
        calls = api_calls.calls_of(mx, space, name, member)
        if isinstance(calls, str):
            if not waiting:
                write({"name": [space, name], "reason": calls})
            continue
        for label, call in calls:
            if waiting:
                waiting = [space, name, label] != after
                continue
            write({"begin": [space, name, label]})
            signal.alarm(SECONDS)
            write({"name": [space, name], "label": label, "result": outcome(mx, call, api_values.described)})


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
        with suppress(Exception):
            mx.nd.waitall()
        return {"error": type(error).__name__, "text": str(error).strip().split("\n")[-1][-160:]}


def write(line):
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def called(spaces, flags):
    """Call namespaces' names in children; for each namespace and name its results by label."""
    found, after, begun = {space: {} for space in spaces}, None, None
    while True:
        command = [sys.executable, "-W", "ignore", __file__, "child", ",".join(spaces), json.dumps(after), *flags]
        done = subprocess.run(command, check=False, capture_output=True, encoding="utf-8")
        for line in (json.loads(text) for text in done.stdout.splitlines() if text.startswith("{")):
            space, name = line.get("name", (None, None))
            if "begin" in line:
                begun = line["begin"]
            elif "reason" in line:
                found[space][name] = line["reason"]
            else:
                found[space].setdefault(name, {})[line["label"]] = line["result"]
        if done.returncode == 0:
            return found
        if begun is None or begun == after:
            raise SystemExit(f"{spaces}: {done.stderr[-2000:]}")
        space, name, label = after = begun
        found[space].setdefault(name, {})[label] = {"died": done.returncode}


def call(arguments):
    """Call everything, and write the results to a file."""
    import numpy as np

    if not arguments.plain:
        import mxkit  # noqa: F401
    results = {"python": sys.version.split()[0], "numpy": np.__version__, "names": {}}
    flags = ["--plain"] if arguments.plain else []
    for spaces in batches(arguments.spaces or api_names.spaces()):
        for space, names in called(spaces, flags).items():
            results["names"][space] = names
        sys.stderr.write(f"{spaces[0]}: {sum(len(results['names'][space]) for space in spaces)} names\n")
        with gzip.open(arguments.file, "wt") as file:
            json.dump(results, file, sort_keys=True)


def batches(spaces):
    """Namespaces that one child calls: all modules of a package of GluonCV, which takes seconds to import."""
    found = {}
    for space in spaces:
        parts = space.split(".")
        found.setdefault(".".join(parts[:2]) if parts[0] == "gluoncv" else space, []).append(space)
    return found.values()


def read(path):
    """Results of a run."""
    with gzip.open(str(path), "rt") as file:
        return json.load(file)


#: Namespaces whose written calls `make long` compares: those to which NumPy, Python and ragged inputs matter.
SAMPLED = (
    *("gluon.data", "mx.metric", "mx.io", "gluoncv.data.batchify", "gluoncv.data.dataloader", "gluoncv.nn.coder"),
    *("gluoncv.utils.metrics.voc_detection", "gluoncv.data.transforms.bbox", "mx.np", "mx.nd.NDArray"),
)


def keep_sample(results):
    names = {space: {} for space in SAMPLED}
    for space, found in names.items():
        for name, calls in results["names"][space].items():
            written = {} if isinstance(calls, str) else {one: calls[one] for one in calls if not one.isdigit()}
            if "value" not in written and written:
                found[name] = written
    content = json.dumps({**results, "names": names}, sort_keys=True).encode()
    Path(__file__).with_name("sample.json.gz").write_bytes(gzip.compress(content, mtime=0))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("call", "page", "sample", "child"))
    parser.add_argument("file")
    parser.add_argument("spaces", nargs="*")
    parser.add_argument("--plain", action="store_true")
    arguments = parser.parse_args()
    if arguments.what == "child":
        # A library's own prints go elsewhere than the lines of JSON.
        sys.stdout = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        if not arguments.plain:
            import mxkit  # noqa: F401
        run_spaces(arguments.file.split(","), json.loads(arguments.spaces[0]))
        sys.stdout.flush()
        os._exit(0)
    if arguments.what == "call":
        call(arguments)
    elif arguments.what == "sample":
        keep_sample(read(arguments.file))
    else:
        import api_page

        sys.exit(api_page.write([read(path) for path in [arguments.file, *arguments.spaces]]))


if __name__ == "__main__":
    main()
