"""Messages between the members of a job: JSON, one on a line."""

import json
from typing import Any, Dict

from mxkit.errors import DistributedError

# Longest line. Metrics of many classes and small arrays fit; gradients go through MXNet's servers.
MOST_BYTES = 64 * 2**20
# Seconds between two signs of life, and without one until a member counts as lost.
BEAT, SILENCE = 2.0, 16.0


def encoded(message: Dict[str, Any]) -> bytes:
    """A message as a line."""
    line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
    if len(line) > MOST_BYTES:
        raise DistributedError(f"a message of {len(line)} bytes is too long: at most {MOST_BYTES}")
    return line


def decoded(line: bytes) -> Dict[str, Any]:
    """The message of a line.

    Raises:
        ValueError: It is none.
    """
    message = json.loads(line)
    if not isinstance(message, dict):
        raise ValueError(f"expected an object; received {line[:100]!r}")
    return message
