"""Messages between the members of a job: JSON, after its length in four bytes."""

import json
import os
import socket
import struct
from typing import Any, Dict

from mxkit.errors import DistributedError

# Longest message, and longest first message, whose sender is not known yet. Metrics of many classes and small arrays
# fit; gradients go through MXNet's servers.
MOST_BYTES, HELLO_BYTES = 64 * 2**20, 2**16
# Seconds between two heartbeats.
BEAT = 2.0
# Seconds until a connection counts as lost whose other machine acknowledges nothing. The kernel of a stopped process
# still acknowledges: `silence` is for it. After a network failure of 10 s, TCP tries again within 16 s; a lost member
# must be named within 30 s.
LINK = 20.0


def _seconds(name: str, default: float) -> float:
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
    return _seconds("MXKIT_PATIENCE", 120.0)


def silence() -> float:
    """Seconds without a message until a member counts as lost, by MXKIT_SILENCE.

    Long, because a library that holds Python's lock, for example to read a large JSON file, delays the heartbeats.
    """
    return _seconds("MXKIT_SILENCE", 60.0)


def encoded(message: Dict[str, Any]) -> bytes:
    """Encode a message as bytes.

    Raises:
        DistributedError: The message is too long.
    """
    body = json.dumps(message, separators=(",", ":")).encode()
    if len(body) > MOST_BYTES:
        raise DistributedError(f"a message of {len(body)} bytes is too long: at most {MOST_BYTES}")
    return struct.pack(">I", len(body)) + body


def length_of(head: bytes, most: int = MOST_BYTES) -> int:
    """Number of bytes that follow the first four.

    Raises:
        ValueError: The sender is not a member of a job.
    """
    length = int(struct.unpack(">I", head)[0])
    if length > most:
        raise ValueError(f"expected a message of mxkit; received {head!r}")
    return length


def decoded(body: bytes) -> Dict[str, Any]:
    """Decode a message from its bytes without the first four.

    Raises:
        ValueError: The bytes are not a message.
    """
    try:
        message = json.loads(body)
    except RecursionError:
        message = None
    if not isinstance(message, dict):
        raise ValueError(f"expected an object; received {body[:100]!r}")
    return message


def watch_link(connection: Any) -> None:
    """Let the kernel close a connection whose other machine is lost, and send small messages immediately."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(LINK * 1000))
