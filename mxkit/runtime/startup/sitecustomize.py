"""What `mxkit run` lets Python import while it starts: the finder, and then the `sitecustomize` of the environment.

Any Python that the program starts finds this file on PYTHONPATH, so it is written for all of them.
"""

import os
import sys


def _start():
    # type: () -> None
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if entry != here]
    if os.path.realpath(sys.prefix) == os.environ.get("MXKIT_RUN"):  # another Python may have a MXNet that works
        path = os.path.join(here, "waiting.py")
        with open(path) as file:
            code = compile(file.read() + "\nwait(libraries)\n", path, "exec")
        libraries = list(sys.path) if os.environ.get("MXKIT_OLD_NUMPY") == "1" else None
        exec(code, {"__name__": "mxkit.runtime.startup.waiting", "libraries": libraries})
    ours = sys.modules.pop("sitecustomize")
    try:
        __import__("sitecustomize")
    except ImportError as error:
        if getattr(error, "name", "sitecustomize") != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = ours  # the import of this file ends with a look at it


if __name__ == "sitecustomize":
    _start()
