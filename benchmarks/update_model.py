"""What an update of several workers costs on paper: bytes on the network, and seconds.

`python -m benchmarks.update_model` writes the table of docs/distributed-costs.md; a test compares both.
"""

from typing import List, NamedTuple

from benchmarks.harness import ROOT

PAGE = ROOT / "docs" / "distributed-costs.md"
MARKS = "<!-- table of benchmarks/update_model.py -->\n", "<!-- end of it -->\n"
# A packet of 1500 bytes carries 1448 of an array; for every second packet 52 bytes of acknowledgement come back.
WIRE = (1500 + 52 / 2) / 1448
# Bytes that go to a server at once: `mxkit.distributed.group.PIECE` of float32.
PIECE = 2**20
WORKERS, GIGABITS = (8, 64, 512), (1, 10, 100)
# ResNet-50 in float32, and the delay between two machines of one room.
NET, DELAY = 25_557_032 * 4, 5e-5


class Link(NamedTuple):
    """Of each machine.

    Attributes:
        bits: A second, in each direction at once.
        delay: Seconds from one machine to another.
    """

    bits: float
    delay: float

    def seconds(self, size: float) -> float:
        """How long bytes of arrays occupy one direction."""
        return WIRE * 8 * size / self.bits


def link_bytes(size: float, workers: int) -> float:
    """Bytes of arrays at the machine of rank 0, both directions together: a push and a pull for each other worker."""
    return 2 * size * (workers - 1)


def ps_lite(size: float, workers: int, link: Link, piece: float = PIECE) -> float:
    """Seconds of an update's communication with the servers beside rank 0, where mxkit starts them.

    Sums come back while gradients still go, so the directions count once, and the last piece twice. The workers' small
    messages about counts travel meanwhile.

    Args:
        size: Bytes of all gradients.
        workers: Each on a machine of its own; the first one reaches the servers over loopback.
        link: Of each machine.
        piece: Bytes of the longest message.
    """
    others = workers - 1
    return link.seconds(others * (size + min(piece, size))) + 2 * link.delay


def ps_lite_spread(size: float, workers: int, link: Link) -> float:
    """The same with a server beside each worker: each machine sends to the other servers, and answers as one."""
    return link.seconds(2 * (workers - 1) / workers * size) + 2 * link.delay


def ring(size: float, workers: int, link: Link) -> float:
    """Seconds of Horovod's sum over a ring: 2 (W - 1) steps, each with a part of 1 / W."""
    return link.seconds(2 * (workers - 1) / workers * size) + 2 * (workers - 1) * link.delay


def table() -> str:
    """The page's table."""
    lines = [
        "| workers | Gbit/s | servers beside rank 0 | a server beside each worker | ring |",
        "|---|---|---|---|---|",
    ]
    for workers in WORKERS:
        for gigabits in GIGABITS:
            link = Link(gigabits * 1e9, DELAY)
            ways = ps_lite(NET, workers, link), ps_lite_spread(NET, workers, link), ring(NET, workers, link)
            lines.append(f"| {workers} | {gigabits} | " + " | ".join(f"{way:.3g} s" for way in ways) + " |")
    return "\n".join(lines) + "\n"


def limits(compute: float = 0.25) -> List[str]:
    """Lines of the page: the most workers whose communication takes at most `compute` seconds."""
    lines = []
    for gigabits in GIGABITS:
        link = Link(gigabits * 1e9, DELAY)
        most = max((one for one in range(1, 1025) if one == 1 or ps_lite(NET, one, link) <= compute), default=1)
        lines.append(f"- {gigabits} Gbit/s: {most} worker{'s' * (most > 1)}\n")
    return lines


def generated() -> str:
    """What stands between the page's marks."""
    return MARKS[0] + table() + "\n" + _LIMITS + "\n" + "".join(limits()) + MARKS[1]


_LIMITS = "The most workers for which the exchange takes at most 0.25 s, with the servers beside rank 0:\n"


def main() -> None:
    text = PAGE.read_text()
    before, after = text[: text.index(MARKS[0])], text[text.index(MARKS[1]) + len(MARKS[1]) :]
    PAGE.write_text(before + generated() + after)


if __name__ == "__main__":
    main()
