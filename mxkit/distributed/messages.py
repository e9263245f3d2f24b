"""Messages between the members of a job: JSON, after its length in four bytes."""

import json
import os
import socket
import struct
from typing import Any, Dict

from mxkit.errors import DistributedError

# Longest message, and longest first one, of whom nobody knows yet. Metrics of many classes and small arrays fit;
# gradients go through MXNet's servers.
MOST_BYTES, HELLO_BYTES = 64 * 2**20, 2**16
# Seconds between two signs of life.
BEAT = 2.0
# Seconds until a connection counts as lost whose other machine confirms nothing that was sent. A process that stands
# still has a kernel that confirms: `silence` is for it. When a network was away for 10 s, TCP tries again after up to
# 16 s; and who is lost must be named within 30 s.
LINK = 20.0


def number_of(name: str, default: float) -> float:
    """Seconds, from a variable of the environment.

    Raises:
        DistributedError: It is no positive number.
    """
    text = os.environ.get(name) or str(default)
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise DistributedError(f"{name}={text!r:.100}: expected a number of seconds, like {name}={default:g}")
    return seconds


def patience() -> float:
    """Seconds to wait for all members, by MXKIT_PATIENCE."""
    return number_of("MXKIT_PATIENCE", 120.0)


def silence() -> float:
    """Seconds without a sign of life until a member counts as lost, by MXKIT_SILENCE.

    Long, because a library that holds Python's lock, as while a large file of JSON is read, sends none.
    """
    return number_of("MXKIT_SILENCE", 60.0)


def encoded(message: Dict[str, Any]) -> bytes:
    """A message as bytes.

    Raises:
        DistributedError: It is too long.
    """
    body = json.dumps(message, separators=(",", ":")).encode()
    if len(body) > MOST_BYTES:
        raise DistributedError(f"a message of {len(body)} bytes is too long: at most {MOST_BYTES}")
    return struct.pack(">I", len(body)) + body


def length_of(head: bytes, most: int = MOST_BYTES) -> int:
    """Number of bytes after the first four.

    Raises:
        ValueError: Something else than a member of a job speaks.
    """
    length = int(struct.unpack(">I", head)[0])
    if length > most:
        raise ValueError(f"expected a message of mxkit; received {head!r}")
    return length


def decoded(body: bytes) -> Dict[str, Any]:
    """A message from its bytes without the first four.

    Raises:
        ValueError: It is none.
    """
    try:
        message = json.loads(body)
    except RecursionError:
        message = None
    if not isinstance(message, dict):
        raise ValueError(f"expected an object; received {body[:100]!r}")
    return message


def watch_link(connection: Any) -> None:
    """Let the kernel end a connection whose other machine is lost, and send small messages at once."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(LINK * 1000))
