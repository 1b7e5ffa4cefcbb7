"""The result of a sweep: throughput and latency by concurrency and batch.

The batch of a point is the mean of the engine's steps, or else the number of clients. One client
on an engine that batches is a sound point, although its result is invalid as nothing was batched.
Points that are invalid for another reason or incomplete are shown, but excluded from the fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from orch_sidecar.tools.bench.results.fact import NO_FACT
from orch_sidecar.tools.bench.results.fit import fit
from orch_sidecar.tools.bench.results.result import Document, Result
from orch_sidecar.tools.facts.evidence.verdict import NEVER_BATCHED


class Point(Document):
    """One concurrency. `speed_up`: over the smallest one; `efficiency`: speed-up per client."""

    clients: int
    batch_mean: float | None
    batch_largest: int | None
    tokens_per_s: float
    ttft_p50_ms: float | None
    ttft_p95_ms: float | None
    tpot_p50_ms: float | None
    speed_up: float
    efficiency: float
    client_bottleneck: bool
    status: str
    reasons: list[str]

    @property
    def batch(self) -> float:
        """The mean number of sequences in a step."""
        return self.batch_mean or float(self.clients)


class FitDocument(Document):
    """TPOT in ms as t0 + c * b^alpha of the batch b, rounded. `worst_error`: relative."""

    t0_ms: float
    c_ms: float
    alpha: float
    worst_error: float


class Sweep(Document):
    """The file. `complete`: all concurrencies were measured completely; `ended_by`: otherwise,
    what ended the sweep."""

    schema_version: Literal["orch.sweep/1"] = "orch.sweep/1"
    complete: bool
    ended_by: str
    points: list[Point]
    fit: FitDocument | None
    results: list[Result]


def sweep_of(results: Sequence[Result], ended_by: str = "") -> Sweep:
    """Returns the sweep of closed loops' results, which are in ascending order of their clients.

    A result without an answer has no point. `ended_by`: why concurrencies are missing, if any.
    """
    points: list[Point] = []
    first: tuple[int, float] | None = None
    for result in results:
        figures, clients = result.figures, result.scenario.clients
        if figures is None or clients is None or not figures.tokens_per_s:
            continue
        if first is None:
            first = clients, figures.tokens_per_s
        speed_up = figures.tokens_per_s / first[1]
        points.append(
            Point(
                clients=clients,
                batch_mean=None if result.batches is None else result.batches.mean,
                batch_largest=None if result.batches is None else result.batches.largest,
                tokens_per_s=figures.tokens_per_s,
                ttft_p50_ms=None if figures.ttft_ms is None else figures.ttft_ms.p50,
                ttft_p95_ms=None if figures.ttft_ms is None else figures.ttft_ms.p95,
                tpot_p50_ms=None if figures.tpot_ms is None else figures.tpot_ms.p50,
                speed_up=round(speed_up, 4),
                efficiency=round(speed_up * first[0] / clients, 4),
                client_bottleneck=bool(result.client.bottleneck),
                status=result.status,
                reasons=result.reasons,
            )
        )
    return Sweep(
        complete=not ended_by,
        ended_by=ended_by,
        points=points,
        fit=_fit([point for point in points if is_sound(point)]),
        results=list(results),
    )


def is_sound(found: Point | Result) -> bool:
    """Returns whether it is valid, but for a single client on an engine that batches."""
    if found.status in NO_FACT:
        return found.reasons == [NEVER_BATCHED] and _clients_of(found) == 1
    return True


def _clients_of(found: Point | Result) -> int | None:
    return found.clients if isinstance(found, Point) else found.scenario.clients


def _fit(points: Sequence[Point]) -> FitDocument | None:
    # By batch, not by clients: more clients than slots do not enlarge the batch.
    found = fit([(p.batch, p.tpot_p50_ms) for p in points if p.tpot_p50_ms])
    if found is None:
        return None
    return FitDocument(
        t0_ms=round(found.t0, 4),
        c_ms=round(found.c, 4),
        alpha=found.alpha,
        worst_error=round(found.worst_error, 4),
    )


_HEAD: Final = ("clients", "batch", "tokens/s", "TTFT p50", "p95 ms", "TPOT ms", "x", "eff.", "")


def sweep_text(sweep: Sweep) -> str:
    """Returns a table, the fit, and the reasons for the status of points."""
    rows = [_HEAD]
    rows += [
        (
            str(point.clients),
            _number(point.batch_mean, 2),
            _number(point.tokens_per_s, 1),
            _number(point.ttft_p50_ms, 1),
            _number(point.ttft_p95_ms, 1),
            _number(point.tpot_p50_ms, 2),
            f"{point.speed_up:.2f}",
            f"{point.efficiency:.2f}",
            point.status,
        )
        for point in sweep.points
    ]
    widths = [max(len(row[at]) for row in rows) for at in range(len(_HEAD))]
    lines = [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    found = sweep.fit
    if found is None:
        lines.append("TPOT: not fitted, which needs three different batches")
    else:
        lines.append(
            f"TPOT = {found.t0_ms:.3f} + {found.c_ms:.3f} * b^{found.alpha:.2f} ms, "
            f"largest deviation {found.worst_error:.0%}"
        )
    if sweep.points:
        lines.append(f"x and eff. are relative to {_clients(sweep.points[0])}")
    for point in sweep.points:
        lines += [f"  {_clients(point)}: {reason}" for reason in point.reasons]
        if point.client_bottleneck:
            lines.append(f"  {_clients(point)}: the client may be the bottleneck")
    if not sweep.complete:
        lines.append(f"INCOMPLETE: {sweep.ended_by}")
    return "\n".join(lines)


def _clients(point: Point) -> str:
    return "1 client" if point.clients == 1 else f"{point.clients} clients"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
