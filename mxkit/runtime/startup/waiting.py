"""A finder that imports mxkit just before a program imports MXNet.

`mxkit enable` copies this text into a `.pth` file, and `sitecustomize.py` runs it. It costs a process without MXNet
almost no time, and prints nothing if mxkit is no longer installed.
"""

import sys


class Waiting:
    """Finds MXNet and GluonCV by mxkit's finder, and NumPy and the libraries that get its old names."""

    def __init__(self, old_numpy: str = "") -> None:
        self._old_numpy = old_numpy.split(",")

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> object:
        if fullname in ("mxnet", "gluoncv"):
            module, finder = "mxkit.runtime.import_hook", "ViewFinder"
        elif fullname == "numpy" and "1" in self._old_numpy:
            module, finder = "mxkit.runtime.old_names", "LendingFinder"
        elif fullname.partition(".")[0] in self._old_numpy:
            module, finder = "mxkit.runtime.old_libraries", "LibraryFinder"
        else:
            return None
        try:
            __import__(module)
        except ImportError as error:
            if module not in sys.modules:  # otherwise MXNet is not installed: the finder raises the error
                if fullname not in ("mxnet", "gluoncv") or (error.name or "").partition(".")[0] == "mxkit":
                    return None  # mxkit was uninstalled, or `import mxnet` will raise a clear error
                raise
        return getattr(sys.modules[module], finder)().find_spec(fullname, path, target)


def wait(old_numpy: str = "") -> None:
    """Add the finder.

    Args:
        old_numpy: Who gets NumPy's old names, with commas between them: packages, and "1" for the program's modules.
    """
    sys.meta_path.insert(0, Waiting(old_numpy))  # type: ignore[arg-type] # typeshed wants types of typing
