"""Scenarios, from requests: what was measured together and may make one figure.

Pure. Requests belong together that were labelled alike and ran on engines alike; a client that
gave its run an id has said itself what belongs together, and otherwise a scenario ends where
nothing of its kind ran for a while. Whether a scenario earns its label is not its business.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from orch_sidecar.tools.facts.traces.requests import Decode, Outcome, Request, Traffic

# What `orch bench` adds to the id of a run for the requests before it.
WARMUP: Final = ".warmup"


@dataclass(frozen=True, slots=True)
class Key:
    """What the requests of a scenario have in common; None where the spans do not say."""

    scenario: str | None
    measurement_type: str
    model: str
    pool: str
    profile: str | None
    engine_version: str | None = None
    precision: str | None = None
    gpu: str | None = None
    gpu_count: int | None = None


@dataclass(frozen=True, slots=True)
class Scenario:
    """Requests that were measured together, by their arrival; at least one.

    `before`, `after`: those that belong to them and arrived beyond the ends of what was asked for.
    """

    key: Key
    requests: tuple[Request, ...]
    before: tuple[Request, ...] = ()
    after: tuple[Request, ...] = ()

    @property
    def start_ns(self) -> int:
        return self.requests[0].start_ns

    @property
    def end_ns(self) -> int:
        return max(request.end_ns for request in self.requests)

    @property
    def is_warmup(self) -> bool:
        return self.key.scenario is not None and self.key.scenario.endswith(WARMUP)

    def ended(self, outcome: Outcome) -> tuple[Request, ...]:
        return tuple(request for request in self.requests if request.outcome is outcome)

    @property
    def decodes(self) -> tuple[Decode, ...]:
        """Of the requests that were answered."""
        return tuple(decode for each in self.ended(Outcome.SERVED) for decode in each.decodes)


@dataclass(frozen=True, slots=True)
class Found:
    """The scenarios, by their start; and the requests that were turned away for none of them."""

    scenarios: tuple[Scenario, ...]
    elsewhere: tuple[Request, ...]


def group_scenarios(
    traffic: Traffic, gap_s: float, first_ns: int | None = None, last_ns: int | None = None
) -> Found:
    """The scenarios of a traffic.

    `gap_s`: without an id, a scenario ends where nothing of its kind ran for so long. `first_ns`,
    `last_ns`: what arrived outside of these only tells that a scenario is cut (None: no such end).
    """
    labelled: dict[Key, list[Request]] = defaultdict(list)
    loose: list[Request] = []
    for request in traffic.requests:
        key = _labels(request)
        if key is None:
            loose.append(request)
        else:
            labelled[key].append(request)
    whole: list[Scenario] = []
    for key, requests in labelled.items():
        parts = [requests] if key.scenario is not None else _in_time(requests, gap_s)
        for part in parts:
            whole += _by_engine(key, part)
    gathered, elsewhere = _with_loose(whole, loose)
    cut = (_within(each, first_ns, last_ns) for each in gathered)
    scenarios = [each for each in cut if each is not None]
    scenarios.sort(key=lambda scenario: scenario.start_ns)
    return Found(tuple(scenarios), tuple(elsewhere))


def _labels(request: Request) -> Key | None:
    """None of one that was turned away before it was known where it would go."""
    if request.measurement_type is None or request.model is None or request.pool is None:
        return None
    return Key(
        request.scenario, request.measurement_type, request.model, request.pool, request.profile
    )


def _in_time(requests: Sequence[Request], gap_s: float) -> list[list[Request]]:
    """Parts with nothing for `gap_s` between them. `requests`: by their start."""
    parts: list[list[Request]] = []
    end_ns = 0
    for request in requests:
        if not parts or request.start_ns - end_ns >= gap_s * 1e9:
            parts.append([])
        parts[-1].append(request)
        end_ns = max(end_ns, request.end_ns)
    return parts


def _by_engine(labels: Key, requests: Sequence[Request]) -> list[Scenario]:
    """One for each kind of engine that decoded; what never came to one goes with its neighbours."""
    kinds: dict[Key, list[Request]] = defaultdict(list)
    others: list[Request] = []
    for request in requests:
        if not request.decodes:
            others.append(request)
            continue
        decode = request.decodes[0]
        key = replace(
            labels,
            engine_version=decode.engine_version,
            precision=decode.precision,
            gpu=decode.gpu,
            gpu_count=decode.gpu_count,
        )
        kinds[key].append(request)
    if not kinds:
        return [Scenario(labels, tuple(requests))]
    scenarios = [Scenario(key, tuple(each)) for key, each in kinds.items()]
    windows = _windows(scenarios)

    def nearest(request: Request) -> int:
        return min(range(len(windows)), key=lambda index: _distance_ns(windows[index], request))

    return _joined(scenarios, [(nearest(request), request) for request in others])


def _with_loose(
    scenarios: list[Scenario], loose: Iterable[Request]
) -> tuple[list[Scenario], list[Request]]:
    """Requests without labels go to the scenario of their id, or to the one that went on then."""
    windows = _windows(scenarios)
    chosen: list[tuple[int, Request]] = []
    elsewhere: list[Request] = []
    for request in loose:
        alike = [
            (_distance_ns(window, request), index)
            for index, (scenario, window) in enumerate(zip(scenarios, windows, strict=True))
            if scenario.key.scenario == request.scenario
            and request.model in (None, scenario.key.model)
        ]
        distance_ns, index = min(alike, default=(1, 0))
        if alike and (request.scenario is not None or not distance_ns):
            chosen.append((index, request))
        else:
            elsewhere.append(request)
    return _joined(scenarios, chosen), elsewhere


def _joined(scenarios: Sequence[Scenario], chosen: Iterable[tuple[int, Request]]) -> list[Scenario]:
    """The scenarios with further requests, each in the one of that index."""
    more: dict[int, list[Request]] = defaultdict(list)
    for index, request in chosen:
        more[index].append(request)
    joined = list(scenarios)
    for index, added in more.items():
        together = sorted((*scenarios[index].requests, *added), key=lambda each: each.start_ns)
        joined[index] = replace(scenarios[index], requests=tuple(together))
    return joined


def _windows(scenarios: Sequence[Scenario]) -> list[tuple[int, int]]:
    return [(scenario.start_ns, scenario.end_ns) for scenario in scenarios]


def _distance_ns(window: tuple[int, int], request: Request) -> int:
    """How far from a window it arrived, 0 within."""
    start_ns, end_ns = window
    return max(start_ns - request.start_ns, request.start_ns - end_ns, 0)


def _within(scenario: Scenario, first_ns: int | None, last_ns: int | None) -> Scenario | None:
    """What of it arrived within the ends; None of nothing."""
    early = [
        each for each in scenario.requests if first_ns is not None and each.start_ns < first_ns
    ]
    late = [each for each in scenario.requests if last_ns is not None and each.start_ns > last_ns]
    kept = scenario.requests[len(early) : len(scenario.requests) - len(late)]
    if not kept:
        return None
    return Scenario(scenario.key, kept, tuple(early), tuple(late))
