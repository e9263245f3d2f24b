"""The table of docs/api-table.md: every public name of MXNet and GluonCV, called under several Pythons.

    python tests/api/api_table.py call OUT.json.gz            calls every name under this Python
    python tests/api/api_table.py call OUT.json.gz --plain    MXNet alone; NumPy before 1.24 only
    python tests/api/api_table.py page PLAIN OLDEST NEWEST    writes the page; exit code 1 if a row is unexplained
    python tests/api/api_table.py sample PLAIN                keeps what `make long` compares with, sample.json.gz

Names are called in forks of this process, a namespace each, with the same seeds before every call. Where a call ends
the process, the next one goes on after it. MXNet is only imported here: its engine starts in the forks.
"""

import argparse
from contextlib import suppress
import gzip
import json
import multiprocessing
import os
from pathlib import Path
import signal
import sys
import warnings

import api_calls
import api_names

SECONDS = 60
FORK = multiprocessing.get_context("fork")
#: Namespaces whose written calls `make long` compares: those to which NumPy, Python and ragged inputs matter.
SAMPLED = (
    *("gluon.data", "mx.metric", "mx.io", "gluoncv.data.batchify", "gluoncv.data.dataloader", "gluoncv.nn.coder"),
    *("gluoncv.utils.metrics.voc_detection", "gluoncv.data.transforms.bbox", "mx.np", "mx.nd.NDArray"),
)


def run_space(space, after, pipe):
    """Call the names of a namespace in this process, and send name, label and result of each call.

    Args:
        after: Name and label of the call that ended the process before; all up to it are left out.
    """
    import api_values
    import mxnet as mx

    warnings.simplefilter("ignore")
    for stream in (1, 2):  # what a library itself says
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    for name, member in api_names.names_of(space).items():
        calls = api_calls.calls_of(mx, space, name, member)
        if isinstance(calls, str):
            pipe.send((name, None, calls))
            continue
        for label, call in calls:
            if after is not None:
                after = None if after == (name, label) else after
                continue
            pipe.send((name, label, None))  # it begins
            signal.alarm(SECONDS)
            pipe.send((name, label, outcome(mx, call, api_values.described)))
            signal.alarm(0)


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


def called(space):
    """Call a namespace's names in forks; for each name its results by label."""
    found, begun, after = {}, None, None
    while True:
        here, there = FORK.Pipe(duplex=False)
        process = FORK.Process(target=run_space, args=(space, after, there))
        process.start()
        there.close()
        with suppress(EOFError):
            while True:
                name, label, result = here.recv()
                if label is None:
                    found[name] = result
                else:
                    begun = name, label
                    found.setdefault(name, {})[label] = result
        process.join()
        if process.exitcode == 0:
            return found
        if begun == after:
            raise SystemExit(f"{space}: the process ended with {process.exitcode}")
        found[begun[0]][begun[1]] = {"died": process.exitcode}
        after = begun


def call(arguments):
    """Call everything, and write the results to a file."""
    import numpy as np

    if not arguments.plain:
        import mxkit  # noqa: F401
    results = {"python": sys.version.split()[0], "numpy": np.__version__, "names": {}}
    for space in arguments.spaces or api_names.spaces():
        api_names.module_of(space.rpartition(".")[0] if space in api_names.ARRAYS else space)
        results["names"][space] = called(space)
        sys.stderr.write(f"{space}: {len(results['names'][space])} names\n")
        with gzip.open(arguments.file, "wt") as file:
            json.dump(results, file, sort_keys=True)


def read(path):
    """Results of a run."""
    with gzip.open(str(path), "rt") as file:
        return json.load(file)


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
    parser.add_argument("what", choices=("call", "page", "sample"))
    parser.add_argument("file")
    parser.add_argument("spaces", nargs="*")
    parser.add_argument("--plain", action="store_true")
    arguments = parser.parse_args()
    if arguments.what == "call":
        call(arguments)
    elif arguments.what == "sample":
        keep_sample(read(arguments.file))
    else:
        import api_page

        sys.exit(api_page.write([read(path) for path in [arguments.file, *arguments.spaces]]))


if __name__ == "__main__":
    main()
