"""Whether requests came as a label requires, and the batch that offline requires."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orch_sidecar.tools.facts.tables.row import Row, parse_notes
from orch_sidecar.tools.facts.traces.spans import Span
from tests.orch_sidecar.tools.facts.cheats.alterations import reasons
from tests.orch_sidecar.tools.facts.objections import judged
from tests.orch_sidecar.tools.facts.spans import one

SLOTS = 8


def offline(number: int, start_s: float, end_s: float, **more: Any) -> list[Span]:
    """Returns a request of one sequence, in an engine of 8 slots that are all used."""
    defaults: dict[str, Any] = {
        "label": "offline",
        "sequences": 1,
        "batch": (4, SLOTS, 8.0),
        "server": {"orch.class": "bulk"},
    }
    return one(number, start_s, end_s, **{**defaults, **more})


def objected(*requests: list[Span]) -> set[str]:
    """Returns the objections to the load."""
    return reasons(judged(*requests)) & {"one_by_one", "trickle", "batch_not_full"}


def closed_loop(clients: int, each: int, pause_s: float) -> list[list[Span]]:
    """Returns the requests of clients that wait for their answers: staggered, of 1 s each."""
    return [
        offline(
            1 + client + clients * turn,
            turn * (1 + pause_s) + client * 0.01 * (turn > 0),
            turn * (1 + pause_s) + client * 0.01 + 1,
        )
        for turn in range(each)
        for client in range(clients)
    ]


def test_everything_at_once_is_offline() -> None:
    assert objected(*(offline(n, n / 1000, 10 + n) for n in range(1, 30))) == set()


def test_closed_loop_of_as_many_clients_as_slots_is_offline() -> None:
    assert objected(*closed_loop(clients=SLOTS, each=10, pause_s=0.01)) == set()


@pytest.mark.parametrize(("clients", "pause_s"), [(SLOTS, 0.3), (SLOTS // 2, 0.0), (1, 0.0)])
def test_closed_loop_that_lets_slots_run_dry_is_a_trickle(clients: int, pause_s: float) -> None:
    assert "trickle" in objected(*closed_loop(clients=clients, each=10, pause_s=pause_s))


def test_rejected_requests_are_no_supply() -> None:
    rejected = [offline(100 + n, 0, 10, outcome="queue_full")[:2] for n in range(SLOTS)]
    assert "trickle" in objected(*closed_loop(clients=4, each=10, pause_s=0.0), *rejected)


def test_arrivals_that_take_a_part_of_the_run_are_a_trickle() -> None:
    """All are in flight at once in the end, but most of the time they are not."""
    assert objected(*(offline(n, n, 20) for n in range(8))) == {"trickle"}
    assert objected(*(offline(n, n / 10, 20) for n in range(8))) == set()


def test_every_slot_is_used_in_one_step_at_least() -> None:
    slots: dict[str, Any] = {"orch.slots_total": 100}

    def run(batch: int) -> list[list[Span]]:
        return [
            offline(n, 0, 1, batch=(4, batch, 80.0), decode=slots, tokens=(10, 100))
            for n in range(120)
        ]

    assert objected(*run(100)) == set()
    assert objected(*run(99)) == {"batch_not_full"}


def waiting(request: list[Span], from_s: float, until_s: float) -> list[Span]:
    """Returns a request that waited for admission, then was sent to the engine."""
    from_ns, until_ns = round(from_s * 1e9), round(until_s * 1e9)
    server, wait, *rest = request
    waited = replace(wait, start_ns=from_ns, end_ns=until_ns)
    return [server, waited, *(replace(span, start_ns=until_ns) for span in rest)]


def test_batch_that_admission_limited_is_noted() -> None:
    """Four at a time were dispatched, although the engine has eight slots."""
    first = [waiting(offline(n, 0, 5, batch=(4, 4, 4.0)), 0, 0) for n in range(1, 5)]
    then = [waiting(offline(n, 0, 10, batch=(4, 4, 4.0)), 0, 5) for n in range(5, 9)]
    found = judged(*first, *then)
    assert isinstance(found, Row), found
    assert parse_notes(found.scenario_notes)["batch_limited_by"] == "admission"
    # The engine had four, and decoded two of them at a time: admission does not explain that.
    smaller = [offline(n, 0, 5, batch=(4, 2, 2.0)) for n in range(1, 5)]
    late = [waiting(offline(n, 0, 10, batch=(4, 2, 2.0)), 0, 5) for n in range(5, 9)]
    assert objected(*(waiting(each, 0, 0) for each in smaller), *late) == {"batch_not_full"}


def test_batch_that_the_engines_memory_limited_is_noted() -> None:
    queued: dict[str, Any] = {"gen_ai.latency.time_in_queue": 4.5}
    batch = (4, 4, 4.0)
    run = [offline(n, 0, 5, batch=batch) for n in range(1, 5)]
    later = [offline(n, 0, 10, batch=batch, decode=queued) for n in range(5, 9)]
    found = judged(*run, *later)
    assert isinstance(found, Row), found
    assert parse_notes(found.scenario_notes)["batch_limited_by"] == "engine"
    unexplained = [offline(n, 0, 10, batch=batch) for n in range(5, 9)]
    assert objected(*run, *unexplained) == {"batch_not_full"}


@pytest.mark.parametrize("label", ["batched_online", "offline"])
def test_requests_that_never_overlap_are_not_batched(label: str) -> None:
    """However many sequences each of them has."""
    alone = [one(n, n, n + 1, label=label, sequences=4, batch=(4, 4, 4.0)) for n in range(6)]
    assert "one_by_one" in objected(*alone)
    assert "one_by_one" not in objected(*alone, one(9, 0.5, 1.5, label=label, batch=(4, 4, 4.0)))
