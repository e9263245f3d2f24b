"""Work in processes of its own that start at once: a server, which has imported MXNet, forks one for each job.

For whatever does not depend on how a process is started: importing MXNet again takes three seconds. As a script, this
file is the server.
"""

from contextlib import suppress
import gc
import importlib
import json
import multiprocessing
import os
from pathlib import Path
import runpy
import signal
import subprocess
import sys
import tempfile
import warnings

import mxkit

PACKAGES = Path(mxkit.__file__).parents[1]
# None of them computes when it is imported: MXNet's engine starts in the fork.
IMPORTED = ("gluoncv", "matplotlib.pyplot", "mxkit.cli", "mxkit.recipe.run", "mxnet", "pandas")


class Forks:
    """The tests' end of the server."""

    def __init__(self):
        variables = {**os.environ, "PYTHONPATH": str(PACKAGES)}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "universal_newlines": True}
        self._server = subprocess.Popen([sys.executable, __file__], env=variables, **pipes)

    def run(self, job, *arguments, folder=".", strict=False, timeout=600, meanwhile=None):
        """Run `job` in `folder`; return its exit status and output, as `subprocess.run` does.

        Args:
            job: "module:function", called with the arguments, or the path of a script, whose command line they are.
            strict: Warnings are errors.
            meanwhile: Called with the process's number once it has begun.
        """
        with tempfile.NamedTemporaryFile("r") as out, tempfile.NamedTemporaryFile("r") as err:
            folder, streams = str(Path(folder).resolve()), [out.name, err.name]
            order = [str(job), arguments, folder, strict, timeout, dict(os.environ), sys.path, streams]
            self._server.stdin.write(json.dumps(order) + "\n")
            self._server.stdin.flush()
            process = int(self._server.stdout.readline())
            try:
                if meanwhile is not None:
                    meanwhile(process)
            except BaseException:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)  # the server, which later tests ask, waits for it, stopped or not
                raise
            finally:
                code = int(self._server.stdout.readline())
            return subprocess.CompletedProcess([job, *arguments], code, out.read(), err.read())

    def end(self):
        self._server.stdin.close()
        self._server.stdout.close()
        self._server.wait()


def _work(job, arguments, folder, strict, timeout, variables, paths, streams):
    """In the forked process: become the job."""
    for number, path in enumerate(streams, start=1):
        os.dup2(os.open(path, os.O_WRONLY), number)
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(folder)
    sys.path[:] = paths
    if strict:
        warnings.simplefilter("error")
    multiprocessing.set_start_method(None, force=True)  # the job may choose one
    signal.alarm(timeout)
    if job.endswith(".py"):
        sys.argv = [job, *arguments]
        runpy.run_path(job, run_name="__main__")
    else:
        module, _, function = job.partition(":")
        getattr(importlib.import_module(module), function)(*arguments)


def serve():
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()  # a job's own collections need not look at what was imported here
    forking = multiprocessing.get_context("fork")
    for line in sys.stdin:
        process = forking.Process(target=_work, args=json.loads(line))
        process.start()
        print(process.pid, flush=True)  # noqa: T201
        process.join()
        print(process.exitcode, flush=True)  # noqa: T201


if __name__ == "__main__":
    serve()
