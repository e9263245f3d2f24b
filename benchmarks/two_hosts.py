"""Two hosts in one kernel, with a link between them that has a speed and a delay, and that can be cut: needs root.

The hosts are network namespaces. Their ends of the link are TUN devices: a process carries each packet from one to the
other at the time at which a real link would have delivered it. Kernels of containers and small machines mostly lack
netem, which could do that; this way needs only /dev/net/tun and `ip`.
"""

from collections import deque
import contextlib
import ctypes
import fcntl
import os
from pathlib import Path
import selectors
import signal
import struct
import subprocess
import sys
import time
from typing import Any, Deque, Dict, List, Mapping, Optional, Sequence, Tuple

from benchmarks.harness import ROOT

# Addresses of the hosts.
A, B = "10.77.0.1", "10.77.0.2"
# Bytes of a packet on the link; of these 52 are the headers of IP and TCP with its timestamps. A TUN device has no
# Ethernet, whose frames would add 38 bytes to each.
PACKET, HEADERS = 1500, 52
# Seconds that a full queue before the link holds; what comes then is lost, as in a router.
QUEUE = 0.1


class TwoHosts:
    """Two hosts and their link.

    Args:
        bits: A second, in each direction.
        delay: Seconds that a packet needs from one host to the other.

    Raises:
        OSError, subprocess.CalledProcessError: This process may not make namespaces or devices.
    """

    def __init__(self, bits: float, delay: float) -> None:
        self.names = [f"mxkit-{os.getpid()}-{end}" for end in "ab"]
        self._processes: List[subprocess.Popen[bytes]] = []
        try:
            for name in self.names:
                _ip("netns", "add", name)
                _ip("-n", name, "link", "set", "lo", "up")
            command = [sys.executable, "-m", "benchmarks.two_hosts", *self.names, str(bits), str(delay)]
            self._link = subprocess.Popen(command, cwd=str(ROOT), stdout=subprocess.PIPE)
            self._processes.append(self._link)
            if self._link.stdout is None or self._link.stdout.readline() != b"ready\n":
                raise OSError("the process of the link did not start")
            for name, own in zip(self.names, (A, B)):
                _ip("-n", name, "link", "set", "dev", "wire", "up", "mtu", str(PACKET), "txqueuelen", "1000")
                _ip("-n", name, "addr", "add", f"{own}/24", "dev", "wire")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "TwoHosts":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(
        self, host: int, command: Sequence[str], environment: Mapping[str, str], **keywords: Any
    ) -> "subprocess.Popen[Any]":
        """Start a process on host 0 or 1; it ends with the hosts."""
        whole = ["ip", "netns", "exec", self.names[host], *command]
        process = subprocess.Popen(whole, env={**os.environ, **environment}, **keywords)
        self._processes.append(process)
        return process

    def cut(self, cut: bool) -> None:
        """Lose all packets from now on, or no longer."""
        self._link.send_signal(signal.SIGUSR1 if cut else signal.SIGUSR2)

    def close(self) -> None:
        """End all processes, and remove the hosts."""
        for process in self._processes:
            process.kill()
            process.wait()
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL)


def link_bytes() -> Tuple[int, int]:
    """Bytes that this host has received from the link and sent on it so far, with the packets' headers."""
    line = next(one for one in Path("/proc/self/net/dev").read_text().splitlines() if one.strip().startswith("wire:"))
    numbers = line.split(":")[1].split()
    return int(numbers[0]), int(numbers[8])


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def _device(namespace: str) -> int:
    """A TUN device named "wire" in a namespace, where this process stays."""
    with Path(f"/run/netns/{namespace}").open() as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), 0x40000000):  # CLONE_NEWNET
            raise OSError(ctypes.get_errno(), "setns")
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, 0x400454CA, struct.pack("16sH22x", b"wire", 0x1001))  # TUNSETIFF, IFF_TUN | IFF_NO_PI
    return device


class _Direction:
    """Packets on their way from one device to the other."""

    def __init__(self, source: int, target: int, bits: float, delay: float) -> None:
        self.source, self.target, self.bits, self.delay = source, target, bits, delay
        self.free = 0.0  # when the link is free for the next packet
        self.packets: Deque[Tuple[float, bytes]] = deque()

    def take(self, cut: bool) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                packet = os.read(self.source, 65536)
                now = time.monotonic()
                if cut or self.free > now + QUEUE:
                    continue
                self.free = max(now, self.free) + 8 * len(packet) / self.bits
                self.packets.append((self.free + self.delay, packet))

    def deliver(self) -> Optional[float]:
        """Deliver what has arrived; return when the next one does."""
        while self.packets and self.packets[0][0] <= time.monotonic():
            with contextlib.suppress(OSError):  # the device is not up yet, or is full
                os.write(self.target, self.packets.popleft()[1])
        return self.packets[0][0] if self.packets else None


def carry(names: Sequence[str], bits: float, delay: float) -> None:
    """Be the link, until killed."""
    state: Dict[str, bool] = {"cut": False}
    signal.signal(signal.SIGUSR1, lambda *_: state.update(cut=True))
    signal.signal(signal.SIGUSR2, lambda *_: state.update(cut=False))
    first, second = map(_device, names)
    ways = [_Direction(first, second, bits, delay), _Direction(second, first, bits, delay)]
    selector = selectors.SelectSelector()  # epoll waits for whole milliseconds
    for way in ways:
        selector.register(way.source, selectors.EVENT_READ, way)
    print("ready", flush=True)
    while True:
        due = [at for at in (way.deliver() for way in ways) if at is not None]
        for key, _ in selector.select(max(0.0, min(due) - time.monotonic()) if due else None):
            key.data.take(state["cut"])


if __name__ == "__main__":
    carry(sys.argv[1:3], float(sys.argv[3]), float(sys.argv[4]))
