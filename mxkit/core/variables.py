"""Variables of the environment that hold for a while."""

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
