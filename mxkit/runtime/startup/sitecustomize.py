"""Python imports it under `mxkit run` while it starts: it adds the finder and runs the environment's `sitecustomize`.

Every Python that the program starts finds this file on PYTHONPATH, so its code fits all versions.
"""

import os
import sys


def _start():
    # type: () -> None
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if entry != here]
    if os.path.realpath(sys.prefix) == os.environ.get("MXKIT_RUN"):  # another Python may have its own working MXNet
        path = os.path.join(here, "waiting.py")
        with open(path) as file:
            code = compile(file.read() + "\nwait(old_numpy)\n", path, "exec")
        old_numpy = os.environ.get("MXKIT_OLD_NUMPY", "")
        exec(code, {"__name__": "mxkit.runtime.startup.waiting", "old_numpy": old_numpy})
    ours = sys.modules.pop("sitecustomize")
    try:
        __import__("sitecustomize")
    except ImportError as error:
        if getattr(error, "name", "sitecustomize") != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = ours  # Python looks it up when the import of this file ends


if __name__ == "sitecustomize":
    _start()
