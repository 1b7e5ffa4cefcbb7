"""One load at several concurrencies."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from orch_sidecar.tools.bench.load.call import Call
from orch_sidecar.tools.bench.report.sweep import sweep_charts, sweep_report, sweep_title
from orch_sidecar.tools.bench.results.result import Result, Status, row_of
from orch_sidecar.tools.bench.results.sweep import Sweep, sweep_of
from orch_sidecar.tools.drawing.chart import Series
from orch_sidecar.tools.drawing.picture import drawn
from orch_sidecar.tools.facts.tables.notes import Arrivals
from tests.orch_sidecar.tools.bench.sample_results import ONLINE, answered, refused, result
from tests.orch_sidecar.tools.facts.snapshots import snapshot

T0_MS, C_MS, ALPHA = 10.0, 2.0, 0.5


def rounds(clients: int, batch: int | None = None) -> list[Call]:
    """Five rounds of all clients, on an engine whose step takes the formula's time."""
    token_s = (T0_MS + C_MS * (batch or clients) ** ALPHA) / 1000
    lasts_s = 0.1 + 20 * token_s
    return [
        answered(number * lasts_s, token_s=token_s, tokens=21, due=False)
        for number in range(5)
        for _ in range(clients)
    ]


def point(clients: int, calls: Sequence[Call] | None = None, **more: Any) -> Result:
    scenario = replace(ONLINE, arrivals=Arrivals.CLOSED_LOOP, rate_per_s=None, clients=clients)
    return result(rounds(clients) if calls is None else calls, scenario, **more)


def engine(clients: int, batch: int) -> dict[str, Any]:
    """Returns its state after it decoded so many together."""
    steps = {"1": [10, 0.1], "4": [5, 0.1]}
    count, seconds = steps.get(str(batch), [0, 0.0])
    steps[str(batch)] = [count + 100, seconds + 1.0]
    return {"after": snapshot(requests_total=100 + 5 * clients, steps_by_batch=steps)}


def text_of(found: Sweep) -> str:
    return sweep_report(found).plain


def swept(*sizes: int, slots: int = 64) -> Sweep:
    return sweep_of([point(b, rounds(b, min(b, slots)), **engine(b, min(b, slots))) for b in sizes])


def test_speed_up_and_efficiency_are_against_one_client() -> None:
    found = swept(1, 2, 4)
    assert [each.clients for each in found.points] == [1, 2, 4]
    first, _, last = found.points
    assert (first.speed_up, first.efficiency) == (1.0, 1.0)
    assert last.speed_up is not None
    assert last.speed_up == pytest.approx(
        last.figures.tokens_per_s / first.figures.tokens_per_s, abs=1e-4
    )
    assert last.efficiency == pytest.approx(last.speed_up / 4, abs=1e-4)
    assert last.tpot_p50_ms == pytest.approx(T0_MS + C_MS * 4**ALPHA)
    assert last.batch == 4.0


def test_formula_of_the_steps_is_found_again() -> None:
    found = swept(1, 2, 4, 8, 16, 32)
    assert found.fit is not None
    assert found.fit.t0 == pytest.approx(T0_MS, rel=0.02)
    assert found.fit.c == pytest.approx(C_MS, rel=0.05)
    assert found.fit.alpha == pytest.approx(ALPHA, abs=0.02)
    two = swept(1, 2)
    assert two.fit is None
    assert "t(b) was not fitted, which needs three different batches" in text_of(two)


def test_clients_beyond_the_slots_do_not_make_a_larger_batch() -> None:
    """They wait: of 8 slots, 32 clients decode in batches of 8."""
    found = swept(1, 2, 4, 8, 16, 32, slots=8)
    assert [each.batch for each in found.points] == [1, 2, 4, 8, 8, 8]
    assert found.fit is not None
    assert found.fit.alpha == pytest.approx(ALPHA, abs=0.02)


def test_curve_is_fitted_to_mean_batches_and_not_to_rounded_ones() -> None:
    """8 + 2 b ms, at means between whole batches."""
    measured = {1: (1.0, 10.0), 2: (1.49, 10.98), 4: (2.5, 13.0), 8: (4.5, 17.0)}
    results = []
    for clients, (mean, tpot_ms) in measured.items():
        found = point(clients, **engine(clients, 2))
        assert found.batches is not None
        assert found.figures is not None
        tpot = found.figures.times_s["tpot"]
        assert tpot is not None
        batches = replace(found.batches, mean=mean)
        tpot = replace(tpot, p50=tpot_ms / 1000)
        figures = replace(found.figures, times_s={**found.figures.times_s, "tpot": tpot})
        good = {"status": Status.PRELIMINARY, "reasons": []}
        results.append(found.model_copy(update={"batches": batches, "figures": figures, **good}))
    fit = sweep_of(results).fit
    assert fit is not None
    assert (fit.t0, fit.c, fit.alpha, fit.worst_error) == (8.0, 2.0, 1.0, 0.0)


@pytest.mark.parametrize("clients", [1, 8])
def test_point_that_is_invalid_by_others_takes_no_part_in_the_fit(clients: int) -> None:
    def measured(b: int) -> Result:
        ends = engine(b, b)
        if b == clients:  # others used it, and it was slower by them
            ends = {"after": replace(ends["after"], requests_total=101 + 5 * b)}
        return point(b, rounds(b, 40 if b == clients else b), **ends)

    found = sweep_of([measured(b) for b in (1, 2, 4, 8, 16)])
    assert [each.clients for each in found.points if not each.result.is_sound] == [clients]
    assert not found.is_sound
    assert len(found.points) == 5
    assert found.fit is not None
    assert found.fit.alpha == pytest.approx(ALPHA, abs=0.02)
    assert found.fit.worst_error < 0.001


def invalid(clients: int) -> Result:
    """During it another client used the engine, too."""
    after = engine(clients, clients)["after"]
    after = replace(after, requests_total=after.requests_total + 1)
    return point(clients, rounds(clients), after=after)


def sound(clients: int) -> Result:
    return point(clients, **engine(clients, clients))


@pytest.mark.parametrize(
    ("what", "results", "base", "speed_ups", "is_good"),
    [
        ("one client is a sound base", [sound(1), sound(2)], 1, [1.0, 1.907], True),
        ("one client, and others", [invalid(1), sound(2), sound(4)], 2, [None, 1.0, 1.8767], False),
        ("an invalid point between", [sound(1), invalid(2), sound(4)], 1, [1.0, None, 3.5789],
         False),
        ("no sound point", [invalid(2), invalid(4)], None, [None, None], False),
        ("two clients that never met", [point(2, **engine(2, 1)), sound(4)], 4, [None, 1.0], False),
    ],
)  # fmt: skip
def test_speed_up_is_relative_to_the_first_sound_point(
    what: str,
    results: list[Result],
    base: int | None,
    speed_ups: list[float | None],
    is_good: bool,
) -> None:
    found = sweep_of(results)
    assert [each.speed_up for each in found.points] == pytest.approx(speed_ups, abs=0.01)
    assert [each.efficiency is None for each in found.points] == [
        each is None for each in speed_ups
    ]
    assert found.is_sound is is_good
    text = text_of(found)
    clients = "1 client" if base == 1 else f"{base} clients"
    ending = "no speed-up, as no point is sound" if base is None else f"are relative to {clients}."
    assert ending in text
    dashes = base is not None and None in speed_ups
    assert bool(re.search(r" -  +- +invalid\n", text)) is dashes
    assert ("efficiency" in text) is (base is not None)


def series_of(found: Sweep) -> dict[str, Series]:
    """Returns what is drawn, by title and name."""
    return {f"{each.title}: {s.name}": s for each in sweep_charts(found) for s in each.series}


def test_invalid_point_is_drawn_apart() -> None:
    found = sweep_of([invalid(1), sound(2), sound(4), sound(8)])
    for text in ("not sound, and not counted: 1 client", "1 client: the engine accepted"):
        assert text in text_of(found)
    shown = series_of(found)
    assert shown["Throughput: measured"].xs == (2, 4, 8)
    apart = [each for name, each in shown.items() if name.endswith(", not sound")]
    assert [each.xs for each in apart[:3]] == 3 * [(1,)], "five requests have no p95"
    [user] = apart[3:]
    assert list(user.ys) == [found.points[0].figures.tokens_per_s], (
        "of one user, against the accelerator"
    )
    assert {(each.line, each.hollow) for each in apart} == {("", True)}
    [fitted] = [each for name, each in shown.items() if "fit: " in name]
    assert (fitted.xs[0], fitted.xs[-1]) == pytest.approx((2, 8))
    none = series_of(sweep_of([invalid(2), invalid(4)]))
    assert none
    assert all(name.endswith(", not sound") for name in none)


def test_curve_that_is_far_off_is_not_drawn_but_said_to_be() -> None:
    found = swept(1, 2, 4, 8)
    assert found.fit is not None
    bad = found.model_copy(update={"fit": replace(found.fit, worst_error=0.43)})
    assert any("fit: " in name for name in series_of(found))
    assert not any("fit: " in name for name in series_of(bad))
    said = "No curve t0 + c · b^alpha describes the time of a step: the best is 43.0 % off."
    assert said in [each.about for each in sweep_charts(bad)]
    assert said in text_of(bad)


def test_picture_names_label_lengths_hardware_and_what_limits_points() -> None:
    found = sweep_of([point(2, cpu_share=0.99), invalid(4)])
    title = sweep_title(found)
    for part in ("tiny: batched_online", "synthetic, 32 in, 11 out", "vLLM 0.32.0", "CPU (test)"):
        assert part in title
    about = sweep_charts(found)[0].about
    assert "preliminary, too short to be published: 2 clients" in about
    assert "the client may be the bottleneck: 2 clients" in about
    assert "not sound, and not counted: 4 clients" in about
    assert "  the client may be the bottleneck: all" in text_of(sweep_of([found.results[0]]))


def test_point_of_one_client_is_unbatched_with_its_reason_below_the_table() -> None:
    found = swept(1, 2, 4)
    assert [each.result.status for each in found.points] == [
        Status.UNBATCHED,
        *[Status.PRELIMINARY] * 2,
    ]
    assert found.results[0].status is Status.UNBATCHED
    with pytest.raises(ValueError, match="the result is unbatched"):
        row_of(found.results[0])
    table, _, below = text_of(found).partition("t(b) =")
    assert "unbatched" in table
    assert "invalid" not in table
    assert "nothing was batched" not in table
    assert "\n  1 client: no step decoded more than one sequence: nothing was batched" in below
    assert "efficiency are relative to 1 client.\n" in below


def test_concurrency_at_which_nothing_was_answered_has_no_point() -> None:
    found = sweep_of([point(2, [refused(0.0)]), point(4)])
    assert [each.clients for each in found.points] == [4]
    assert (found.points[0].speed_up, len(found.results)) == (1.0, 2)
    nothing = [answered(0.0, output_tokens=0)]
    assert sweep_of([point(2, nothing)]).points == []
    assert "was not fitted" in text_of(sweep_of([point(2, nothing)]))


def test_sweep_that_ended_early_is_marked_incomplete() -> None:
    assert not swept(2).ended_by
    assert "Incomplete" not in text_of(swept(2))
    found = sweep_of([point(2)], "at 4 clients: it was stopped")
    assert found.ended_by
    assert "\nIncomplete:\n  at 4 clients: it was stopped\n" in text_of(found)


def test_without_the_engines_steps_the_batch_is_that_of_the_clients() -> None:
    silent: dict[str, Any] = {"before": None, "after": None}
    found = sweep_of([point(b, **silent) for b in (1, 2, 4, 8)])
    assert [each.batch for each in found.points] == [1.0, 2.0, 4.0, 8.0]
    assert found.fit is not None
    assert found.fit.alpha == pytest.approx(ALPHA, abs=0.05)


def test_sweep_reads_back_as_it_was_written() -> None:
    found = swept(1, 2, 4)
    written = json.dumps(found.model_dump(mode="json"), allow_nan=False)
    assert Sweep.model_validate_json(written) == found


@pytest.mark.parametrize("sizes", [(1,), (1, 2, 4, 8, 16)])
def test_plot_shows_every_chart(sizes: tuple[int, ...]) -> None:
    found = swept(*sizes, slots=8)
    svg = drawn(".svg", sweep_title(found), sweep_charts(found))
    for title in (b"Throughput", b"Time to first token", b"Time per output token"):
        assert b"<!-- " + title + b" -->" in svg
    assert (b"<!-- fit: " in svg) is (len(sizes) > 2)


def test_answers_that_were_not_streamed_are_drawn_by_their_throughput() -> None:
    whole = [answered(0.1 * number, event_s=[]) for number in range(10)]
    found = sweep_of([point(2, whole), point(4, whole)])
    assert found.points[0].figures.times_s["ttft"] is None
    assert "TTFT" not in text_of(found)
    assert [each.title for each in sweep_charts(found)] == ["Throughput"]
