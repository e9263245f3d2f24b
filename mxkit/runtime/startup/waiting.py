"""A finder that imports mxkit just before a program imports MXNet.

`mxkit enable` copies this text into a `.pth` file, and `sitecustomize.py` runs it. It costs a process without MXNet
almost no time, and prints nothing if mxkit is no longer installed.
"""

import sys


class Waiting:
    """Finds MXNet and GluonCV by mxkit's finder, and NumPy if scripts get its old names."""

    def __init__(self, old_numpy: object = False) -> None:
        self._old_numpy = old_numpy

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> object:
        if fullname in ("mxnet", "gluoncv"):
            module, finder = "mxkit.runtime.import_hook", "ViewFinder"
        elif fullname == "numpy" and self._old_numpy:
            module, finder = "mxkit.runtime.old_names", "LendingFinder"
        else:
            return None
        try:
            __import__(module)
        except ImportError as error:
            if module not in sys.modules:  # otherwise MXNet is not installed: the finder raises the error
                if fullname == "numpy" or (error.name or "").partition(".")[0] == "mxkit":
                    return None  # mxkit was uninstalled, or `import mxnet` will raise a clear error
                raise
        return getattr(sys.modules[module], finder)().find_spec(fullname, path, target)


def wait(old_numpy: object = False) -> None:
    """Add the finder.

    Args:
        old_numpy: Whether the program's modules get NumPy's old names.
    """
    sys.meta_path.insert(0, Waiting(old_numpy))  # type: ignore[arg-type] # typeshed wants types of typing
