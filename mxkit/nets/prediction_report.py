"""What `mxkit.optimize` measured, in memory and in the file of a net."""

import json
import os
from typing import Any, List, NamedTuple, Optional, Tuple

from mxkit.core.system import aligned
from mxkit.runtime.engine_settings import MAX_ISA, WITH_TILES, has_tiles


class LayerRow(NamedTuple):
    """One layer of an optimized net.

    Attributes:
        path: Of the layer.
        computes: In which precision.
        difference: Mean absolute difference of its output from the float32 net's, divided by its mean magnitude; what
            the layers before it lost is a part of it. For a layer that is joined with the operators after it, the
            output of the last one.
    """

    path: str
    computes: str
    difference: float


class Measured(NamedTuple):
    """Outputs and time on the sample.

    Attributes:
        samples: Size of the sample.
        agreement: Share of samples with the same class; None if the output is not (samples, classes).
        largest: Largest absolute difference of the outputs.
        relative: Mean absolute difference divided by the mean magnitude.
        seconds: Of a call with the sample, the median of 5 rounds.
        speed: The float32 net's time, hybridized with static memory, divided by `seconds`.
    """

    samples: int
    agreement: Optional[float]
    largest: float
    relative: float
    seconds: float
    speed: float


class Report(NamedTuple):
    """What `optimize` measured; prints as text.

    Attributes:
        precision: As asked for.
        measured: Outputs and time.
        layers: Layers with weights, in the order of the computation, without those that are called more than once.
        kept: Paths of layers that stayed float32.
        limit: The largest accepted loss.
        not_joined: Why oneDNN does not compute several operators at once, for float32 and bfloat16; else empty.
        processor: Name of the processor that computed it.
    """

    precision: str
    measured: Measured
    layers: List[LayerRow]
    kept: Tuple[str, ...]
    limit: float
    not_joined: str
    processor: str = ""

    @property
    def agreement(self) -> Optional[float]:
        """Share of samples with the same class; None if the output is not (samples, classes)."""
        return self.measured.agreement

    def __str__(self) -> str:
        one = self.measured
        rows = [["layer", "computes in", "difference"]]
        rows += [[row.path, row.computes, f"{row.difference:.2g}"] for row in self.layers]
        same = "" if one.agreement is None else f"the same class for {one.agreement:.2%} of {one.samples} samples; "
        words = [
            f"{same}largest difference {one.largest:.3g}, mean {one.relative:.2g} of the outputs' magnitude",
            f"{1000 * one.seconds:.3g} ms a batch of {one.samples}: {one.speed:.2f} x the speed of static float32"
            f"{f', on {self.processor}' if self.processor else ''}",
        ]
        if self.precision != "float32" and one.speed < 1:
            words.append(f"{self.precision} is slower than float32 on this processor")
        if self.not_joined:
            words.append(f"operators are not joined: {self.not_joined}")
        if self.precision != "float32" and has_tiles() and os.environ.get(MAX_ISA, "").upper() != WITH_TILES:
            words.append(f"this processor has AMX: start the process with {MAX_ISA}={WITH_TILES} to use it")
        if self.kept:
            words.append(f"in float32, by keep= or for a loss of at most {self.limit:g}: {', '.join(self.kept)}")
        return "\n".join([*aligned(rows, left=(0, 1)), *words])


def report_text(report: Optional[Report]) -> Optional[str]:
    """A report as JSON, in which a difference may be infinite."""
    if report is None:
        return None
    return json.dumps({**report._asdict(), "measured": report.measured._asdict()})


def report_of(text: Any) -> Optional[Report]:
    """Read what `report_text` wrote.

    Raises:
        ValueError: It is damaged.
    """
    if text is None:
        return None
    try:
        found = json.loads(text)
        layers = [LayerRow(*row) for row in found.pop("layers")]
        measured, kept = Measured(**found.pop("measured")), tuple(found.pop("kept"))
        report = Report(measured=measured, layers=layers, kept=kept, **found)
        str(report)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"no report of mxkit.optimize: {type(error).__name__}: {error}") from error
    return report
