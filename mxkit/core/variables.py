"""Environment variables: sets some for a while, and reads the one that forbids the network."""

from contextlib import contextmanager
import os
from typing import Dict, Iterator, Mapping, Optional


@contextmanager
def environment(variables: Mapping[str, Optional[str]]) -> Iterator[None]:
    """Set variables of the environment inside `with`; None removes one."""
    before: Dict[str, Optional[str]] = {name: os.environ.get(name) for name in variables}

    def put(values: Mapping[str, Optional[str]]) -> None:
        for name, value in values.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    put(variables)
    try:
        yield
    finally:
        put(before)


def is_offline(offline: Optional[bool] = None) -> bool:
    """Whether the network must not be used: `offline`, or if it is None the environment variable `MXKIT_OFFLINE`.

    >>> is_offline(True), is_offline(False)
    (True, False)
    """
    variable = os.environ.get("MXKIT_OFFLINE", "").strip().lower()
    return variable not in ("", "0", "false", "no") if offline is None else offline
