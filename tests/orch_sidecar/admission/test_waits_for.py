"""What the next request waits for, in words."""

from __future__ import annotations

from orch_sidecar.admission import refusals
from tests.orch_sidecar.admission.examples import core_of, fill, interactive, queue


def test_taken_slots_are_counted() -> None:
    core = core_of(2)
    assert core.status(0.0).waited_for is None
    fill(core, interactive(), "a", "b")
    queue(core, interactive(), "c")
    assert core.status(0.0).waited_for == "a slot: all 2 are in use"


def test_slots_that_do_not_suffice_are_counted() -> None:
    core = core_of(4)
    fill(core, interactive(3), "a")
    queue(core, interactive(2), "b")
    text = core.status(0.0).waited_for
    assert text is not None
    assert text.startswith("more slots: 1 of 4 are free")


def test_an_engine_that_is_away_is_named_with_its_reason() -> None:
    core = core_of(1)
    fill(core, interactive(), "a")
    queue(core, interactive(), "b")
    core.engine_unavailable(refusals.RESTARTED, 0.0)
    assert core.status(0.0).waited_for == f"the engine: {refusals.RESTARTED.message}"


def test_every_constraint_has_words() -> None:
    core = core_of(1)
    for each in core.constraints.all:
        text = core.status(0.0)._replace(blocked_by=each).waited_for
        assert text
        assert text == text.strip()
