"""The result of a sweep: throughput and latency by concurrency and batch.

The batch of a point is the mean of the engine's steps, or else the number of clients. One client
on an engine that batches is a sound point that makes no row: its status is `unbatched`. Points that
are invalid or incomplete are shown, but nothing is derived from them: they are excluded from the
fit, have no speed-up, and are never what the speed-up of others is relative to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple
from typing import Annotated, Final, Literal

from pydantic import Field

from orch_sidecar.tools.bench.results.fit import Fit, fit
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


class Sweep(Document):
    """The file. `complete`: all concurrencies were measured completely; `ended_by`: otherwise,
    what ended the sweep. `base_clients`: of the first sound point; None without one. `fit`: of TPOT
    in ms, rounded."""

    schema_version: Literal["orch.sweep/1"] = "orch.sweep/1"
    complete: bool
    ended_by: str
    base_clients: int | None
    points: list[Point]
    fit: Fit | None
    results: Annotated[list[Result], Field(min_length=1)]


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


def _fit(points: Sequence[Point]) -> Fit | None:
    # By batch, not by clients: more clients than slots do not enlarge the batch.
    found = fit([(p.batch, p.tpot_p50_ms) for p in points if p.tpot_p50_ms])
    return found and Fit(*(round(each, 4) for each in astuple(found)))
