"""The result of a sweep: throughput and latency by concurrency and batch.

The batch of a point is the mean of the engine's steps, or else the number of clients. One client
on an engine that batches is a sound point that makes no row: its status is `unbatched`. Points that
are invalid or incomplete are shown, but nothing is derived from them: they are excluded from the
fit, have no speed-up, and are never what the speed-up of others is relative to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from orch_sidecar.tools.bench.results.fit import fit
from orch_sidecar.tools.bench.results.result import Document, Result, Status
from orch_sidecar.tools.facts.labels.judge import NEVER_BATCHED

_UNSOUND: Final = frozenset({Status.INVALID, Status.INCOMPLETE})


class Point(Document):
    """One concurrency. `speed_up`: over the first sound one; `efficiency`: speed-up over the growth
    of the clients. Both are None for a point that is not sound."""

    clients: int
    batch_mean: float | None
    batch_largest: int | None
    tokens_per_s: float
    ttft_p50_ms: float | None
    ttft_p95_ms: float | None
    tpot_p50_ms: float | None
    speed_up: float | None
    efficiency: float | None
    client_bottleneck: bool
    status: Status
    reasons: list[str]

    @property
    def batch(self) -> float:
        """The mean number of sequences in a step."""
        return self.batch_mean or float(self.clients)

    @property
    def is_sound(self) -> bool:
        """Whether other figures may be derived from it."""
        return self.status not in _UNSOUND


class FitDocument(Document):
    """TPOT in ms as t0 + c * b^alpha of the batch b, rounded. `worst_error`: relative."""

    t0_ms: float
    c_ms: float
    alpha: float
    worst_error: float


class Sweep(Document):
    """The file. `complete`: all concurrencies were measured completely; `ended_by`: otherwise,
    what ended the sweep. `base_clients`: of the first sound point; None without one."""

    schema_version: Literal["orch.sweep/1"] = "orch.sweep/1"
    complete: bool
    ended_by: str
    base_clients: int | None
    points: list[Point]
    fit: FitDocument | None
    results: list[Result]


def sweep_of(results: Sequence[Result], ended_by: str = "") -> Sweep:
    """Returns the sweep of closed loops' results, which are in ascending order of their clients.

    A result without an answer has no point. `ended_by`: why concurrencies are missing, if any.
    """
    points: list[Point] = []
    first: tuple[int, float] | None = None
    results = [_unbatched(result) for result in results]
    for result in results:
        figures, clients = result.figures, result.scenario.clients
        if figures is None or clients is None or not figures.tokens_per_s:
            continue
        speed_up = efficiency = None
        if result.status not in _UNSOUND:
            first = first or (clients, figures.tokens_per_s)
            ratio = figures.tokens_per_s / first[1]
            speed_up, efficiency = round(ratio, 4), round(ratio * first[0] / clients, 4)
        points.append(
            Point(
                clients=clients,
                batch_mean=None if result.batches is None else result.batches.mean,
                batch_largest=None if result.batches is None else result.batches.largest,
                tokens_per_s=figures.tokens_per_s,
                ttft_p50_ms=None if figures.ttft_ms is None else figures.ttft_ms.p50,
                ttft_p95_ms=None if figures.ttft_ms is None else figures.ttft_ms.p95,
                tpot_p50_ms=None if figures.tpot_ms is None else figures.tpot_ms.p50,
                speed_up=speed_up,
                efficiency=efficiency,
                client_bottleneck=bool(result.client.bottleneck),
                status=result.status,
                reasons=result.reasons,
            )
        )
    return Sweep(
        complete=not ended_by,
        ended_by=ended_by,
        base_clients=None if first is None else first[0],
        points=points,
        fit=_fit([point for point in points if point.is_sound]),
        results=results,
    )


def is_sound(sweep: Sweep) -> bool:
    """Returns whether all concurrencies were measured, and each of them soundly."""
    return sweep.complete and all(result.status not in _UNSOUND for result in sweep.results)


def _unbatched(result: Result) -> Result:
    """Marks the result of one client that is invalid only as nothing was batched."""
    alone = result.status is Status.INVALID and result.scenario.clients == 1
    if not alone or result.reasons != [NEVER_BATCHED]:
        return result
    return result.model_copy(update={"status": Status.UNBATCHED})


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
            _number(point.speed_up, 2),
            _number(point.efficiency, 2),
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
    if sweep.base_clients is not None:
        lines.append(f"x and eff. are relative to {_clients(sweep.base_clients)}")
    elif sweep.points:
        lines.append("x and eff.: none, as no point is sound")
    for point in sweep.points:
        clients = _clients(point.clients)
        lines += [f"  {clients}: {reason}" for reason in point.reasons]
        if point.client_bottleneck:
            lines.append(f"  {clients}: the client may be the bottleneck")
    if not sweep.complete:
        lines.append(f"INCOMPLETE: {sweep.ended_by}")
    return "\n".join(lines)


def _clients(clients: int) -> str:
    return "1 client" if clients == 1 else f"{clients} clients"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
