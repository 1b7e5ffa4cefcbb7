"""The published figures, and why ours may differ from them.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

# A figure that is off by less agrees.
AGREES: Final = 0.15

POLICY: Final = "Throughput, Latency & Batching Policy"
QUEUE: Final = "Inference Request Batching"
SERVER: Final = "Continuous batching server"
BATCHED: Final = "Batched Inference for Llama-Burn"


@dataclass(frozen=True, slots=True)
class Claim:
    """A figure that a document states. `least`, `most`: the same for a single number; None: no
    such bound. `why`: a sentence for where ours is another."""

    document: str
    what: str
    key: str
    least: float | None
    most: float | None
    why: str = ""
    unit: str = ""

    @property
    def published(self) -> str:
        if self.least is None and self.most is None:
            return "-"
        if self.least == self.most:
            return f"{self.least:g}{self.unit}"
        if self.most is None:
            return f"at least {self.least:g}{self.unit}"
        return f"{self.least:g} to {self.most:g}{self.unit}"

    def agrees(self, value: float) -> bool:
        """Returns whether a figure is within the bounds, but for what is off by chance."""
        above = self.least is None or value >= self.least * (1 - AGREES)
        return above and (self.most is None or value <= self.most * (1 + AGREES))


def _exactly(document: str, what: str, key: str, value: float, why: str, unit: str = "") -> Claim:
    return Claim(document, what, key, value, value, why, unit)


_LITTLE: Final = (
    "By Little's law 80 requests/s of 32 tokens keep 2.3 sequences in a step of 0.9 ms: no window "
    "makes that 16."
)
_ESTIMATE: Final = (
    "The estimate is half a window and a full step; most requests find a step running and wait "
    "for no window, and no step is full."
)
_SCALES: Final = "How a step grows with its batch is the machine's: here two cores, there a GPU."
_FIXED: Final = (
    "A backend that takes 50 ms for any batch gives 8; the document's own figures contradict each "
    "other: four batches of 203 ms take 0.81 s, not 0.28 s."
)
_ALTERNATING: Final = (
    "A step with one sequence takes as long whosever turn it is: alternating gives each stream its "
    "first token early, and no throughput."
)
_MERGED: Final = "That server takes turns; here sequences share a step."


def _sizes(document: str, factors: Mapping[int, float]) -> list[Claim]:
    return [
        _exactly(document, f"throughput of {size} at once over serial", f"x{size}", factor, _SCALES)
        for size, factor in factors.items()
    ]


CLAIMS: Final = (
    _exactly(POLICY, "its program's loop, window 6 ms: TTFT p95", "loop6", 4.47, "", " ms"),
    _exactly(POLICY, "its program's loop, window 2 ms: TTFT p95", "loop2", 2.73, "", " ms"),
    _exactly(POLICY, "the example, window 6 ms: mean TTFT", "ttft6", 4.9, _ESTIMATE, " ms"),
    _exactly(POLICY, "the example, window 2 ms: mean TTFT", "ttft2", 3.9, _ESTIMATE, " ms"),
    _exactly(POLICY, "the example, window 6 ms: sequences per step", "batch6", 16, _LITTLE),
    _exactly(POLICY, "the example, window 2 ms: sequences per step", "batch2", 8, _LITTLE),
    Claim(POLICY, "TTFT p95 saved by 2 ms instead of 6", "saved", 15, None, "", " %"),
    Claim(POLICY, "kernel: tokens/s of 16 over 1", "kernel", 2, None),
    *(
        Claim(POLICY, f"tokens/s (GPU) of `{words}`", f"run{number}", None, None)
        for number, words in enumerate(
            (
                "--lambda=60 --tokens=32 --bmax=8 --window_ms=3 --work=16384",
                "--lambda=120 --tokens=512 --bmax=64 --window_ms=20 --work=16384",
                "--lambda=80 --bmax=16 --window_ms=6",
            )
        )
    ),
    *_sizes(QUEUE, {2: 1.8, 4: 3.2, 8: 5.83, 16: 8.5}),
    _exactly(QUEUE, "backend of 50 ms: serial", "serial", 19.61, "", " requests/s"),
    _exactly(QUEUE, "backend of 50 ms: batches of 8 over serial", "fixed", 5.83, _FIXED),
    Claim(QUEUE, "static batches of 8 over serial, equal lengths", "static", None, None),
    Claim(QUEUE, "continuous batching of 8 over static, equal lengths", "over_equal", None, None),
    Claim(QUEUE, "the same, lengths from 10 to 90", "over_mixed", None, None),
    Claim(QUEUE, "mean latency of static over continuous, lengths from 10 to 90", "later", None,
          None),
    Claim(SERVER, "first byte of stream 2 before the last of stream 1", "before", 1, 1),
    _exactly(SERVER, "three identical streams over the time of one", "identical", 1.0, ""),
    _exactly(SERVER, "tokens/s of three streams over one", "x3", 1.05, _MERGED),
    Claim(BATCHED, "10 x 50 tokens, steps that alternate over sequential", "alternating", 2.5, 4,
          _ALTERNATING),
    Claim(BATCHED, "10 x 50 tokens, batched over sequential", "x10", 5, 7, _SCALES),
    *_sizes(BATCHED, {2: 1.8, 4: 3.0, 8: 4.8, 16: 7.2}),
)  # fmt: skip


def sentence(claim: Claim, value: float) -> str:
    """Returns why a figure of ours is another; empty where it agrees or nothing was published."""
    if claim.agrees(value):
        return ""
    return claim.why or "It does not hold here."
