"""Packages that only some users need: imported where they are used, with the command that installs them."""

from importlib import import_module
from typing import Any


def require(package: str, extra: str) -> Any:
    """Import a package of an extra of mxkit.

    Raises:
        ImportError: It is missing; the text has the command that installs it.
    """
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != package.partition(".")[0]:
            raise
        raise ImportError(f"{package} is not installed: pip install 'mxkit[{extra}]'", name=package) from error
