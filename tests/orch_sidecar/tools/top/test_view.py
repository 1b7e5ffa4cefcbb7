"""Lines of a terminal: everything that matters, in 80 x 24, whatever a name contains."""

from __future__ import annotations

from typing import Any

import pytest
from rich.cells import cell_len
from rich.text import Text

from orch_sidecar.tools.top.live import Choice, InvalidDocument, Live
from orch_sidecar.tools.top.view import (
    Look,
    duration,
    fitted,
    milliseconds,
    number,
    pair,
    screen,
    slots_row,
    snapshot,
    sparkline,
)
from tests.orch_sidecar.tools.top.live_documents import (
    admitted,
    document,
    ended,
    live,
    pool,
    queued,
)

SMALL = Look(80, 24)


def shown(found: Live, choice: Choice | None = None, look: Look = SMALL, **more: str) -> list[str]:
    texts = {"note": "", "away": ""} | more
    lines = screen(found, choice or Choice(), look, texts["note"], texts["away"])
    assert len(lines) == look.height
    assert all(line.cell_len <= look.width for line in lines)
    return [line.plain for line in lines]


def owned(**slots: int) -> dict[str, int]:
    """How many slots each has; who is not named has none."""
    owners = ("total", "free", "interactive", "bulk", "idle", "foreign", "closing")
    return dict.fromkeys(owners, 0) | slots


def style_of(lines: list[Text], text: str) -> set[str]:
    """The styles of a text, wherever it stands."""
    found = set()
    for line in lines:
        at = line.plain.find(text)
        if at >= 0:
            found |= {str(span.style) for span in line.spans if span.start <= at < span.end}
    return found


def test_screen_of_80_by_24_has_what_matters() -> None:
    text = "\n".join(shown(live()))
    for part in (
        "orch top", "ready", "up 2 h", "batched_online", "7/8", "812", "NVIDIA H100",
        "iiiibbc.", "4 interactive", "1 closing", "1 free", "last 6, mean 4.5",
        "9.8 to 22 ms at batch 1 to 8; 8.6 + 1.2 b^0.8", "busy 97 %, KV 31 %",
        "0 preemptions, 0 violations", "TTFT 80/240 (SLO 200)  TPOT 11/14 (SLO 50)",
        "All 8 slots are taken", "queued 0", "starts in 2.0 s", "running-0", "starting", "75 s",
        "ended-2", "q quit", "d drain", "s sort:state",
    ):  # fmt: skip
        assert part in text, f"{part}\n{text}"


def test_text_beside_a_curve_of_many_points_is_whole() -> None:
    points = [[batch / 2, 9.87 + batch, 3] for batch in range(2, 258)]
    fit = {"t0_ms": 15.12, "c_ms": 3.214, "alpha": 0.7812, "largest": 8, "good": True}
    [line] = [each for each in shown(live(pool(curve={"points": points, "fit": fit})))
              if each.startswith("step")]  # fmt: skip
    assert line.endswith(" ms at batch 1 to 128.5; 15.1 + 3.21 b^0.78")


def test_fit_that_is_not_sure_is_not_shown() -> None:
    curve = pool()["curve"]
    lines = shown(live(pool(curve=curve | {"fit": curve["fit"] | {"good": False}})))
    [line] = [each for each in lines if each.startswith("step")]
    assert line.endswith("9.8 to 22 ms at batch 1 to 8")


def test_answer_that_does_not_stream_runs() -> None:
    lines = shown(live(pool(admitted=[admitted(0, first_byte_at=None, phase=None)])))
    [line] = [each for each in lines if "running-0" in each]
    assert "running" in line.replace("running-0", "")


def test_pools_stand_in_the_chosen_order_and_the_keys_are_whole() -> None:
    short = pool("short", queued={"interactive": 1, "bulk": 0})
    long, down = pool("long", queued={"interactive": 1, "bulk": 9}), pool("down", state="down")
    found, choice = live(short, long, down), Choice()
    seen = []
    for _ in range(3):
        choice.sort_pools(found)
        lines = shown(found, choice)
        seen.append([line[1:15].strip() for line in lines[2:5]])
        assert lines[2:5][seen[-1].index("short")].startswith(">"), "it stays chosen"
        assert lines[-1].endswith(f"p pools:{choice.pool_order}  c cancel  d drain  r resume")
    assert seen == [["long", "down", "short"], ["down", "short", "long"], ["short", "long", "down"]]


@pytest.mark.parametrize("look", [Look(40, 10), Look(80, 24), Look(200, 60), Look(20, 4)])
@pytest.mark.parametrize("count", [0, 1, 9])
def test_every_size_is_kept(look: Look, count: int) -> None:
    pools = [pool(f"pool-{number}") for number in range(count)]
    found = live(pool())
    found.apply("update", {"pools": pools})
    lines = shown(found, Choice("pool-7", "running-1"), look)
    assert lines[-1].startswith("q quit")


def test_chosen_pool_and_request_stay_in_sight() -> None:
    rows = [queued(number) for number in range(50)]
    pools = [pool(f"pool-{number}", queue=rows) for number in range(12)]
    lines = shown(live(*pools), Choice("pool-11", "queued-40"))
    assert any(line.startswith(">pool-11") for line in lines)
    assert any(line.startswith(">queued-40") for line in lines)


def test_engine_that_is_away_is_shown_with_since_when_and_what_to_do() -> None:
    away = pool(
        state="down", message="connection refused", advice="Start the engine again.",
        since_at=live().at - 12_000, curve={"points": [], "fit": None}, batches=[], latency={},
        waits=None, rates=dict.fromkeys(("tokens_per_s", "prompt_tokens_per_s", "busy")),
        kv={"usage": None, "tokens": None, "preemptions": 0},
    )  # fmt: skip
    text = "\n".join(shown(live(away)))
    assert "down for 12 s: connection refused" in text
    assert "Start the engine again." in text


def test_sidecar_that_is_away_is_the_first_line() -> None:
    first, *_ = shown(live(), away="http://a:1: connection refused")
    assert first.startswith("AWAY: http://a:1: connection refused")


def test_absent_pool_is_shown() -> None:
    absent = pool(
        state="absent", since_at=None, slots=owned(), engine=None, gpu=None, models=[], queued={},
        message="no address of this pool is known", latency={}, batches=[], queue=[], admitted=[],
        curve={"points": [], "fit": None}, waits=None,
    )  # fmt: skip
    assert "absent: no address of this pool is known" in "\n".join(shown(live(absent)))


def test_what_is_wrong_is_red() -> None:
    lines = snapshot(live(pool(violations=2)), Look(80))
    assert "bold red" in style_of(lines, "2 violations")
    assert "red" in style_of(lines, "80/240"), "beyond the SLO"
    assert style_of(lines, "11/14") == {""} or "red" not in style_of(lines, "11/14")
    refused = ended(3, outcome="queue_full", status=429, text="the queue was full")
    lines = snapshot(live(requests=[refused]), Look(80))
    assert "red" in style_of(lines, "429 the queue was fu")


def test_drained_pool_is_draining() -> None:
    drained = pool(drain={"ordered_by": "operator", "since_at": 1}, advice="An operator has.")
    assert "draining" in "\n".join(shown(live(drained)))


def test_client_is_offered_no_orders() -> None:
    assert "drain" not in shown(live(operator=False))[-1]


def test_control_characters_of_names_never_reach_the_terminal() -> None:
    hostile = "\x1b]0;owned\x07\x1b[2J\r\n\u202eevil"
    rows = {"queue": [queued(0, key=hostile)], "admitted": [admitted(0, id=hostile)]}
    odd = pool(
        hostile, models=[hostile], gpu=hostile, state=hostile, message=hostile, advice=hostile,
        waits={"reason": "slot", "text": hostile}, **rows,
    )  # fmt: skip
    found = live(odd, requests=[ended(1, pool=hostile, text=hostile, outcome=hostile)])
    text = "".join(shown(found)) + "".join(line.plain for line in snapshot(found, SMALL))
    assert text.isprintable()


def test_wide_characters_keep_the_columns() -> None:
    lines = shown(live(pool("模型池模型池模型池模型池")))
    assert any("batched_online" in line for line in lines)


def test_snapshot_has_all_pools_and_all_their_requests() -> None:
    pools = [pool(f"pool-{n}", queue=[queued(k) for k in range(50)]) for n in range(8)]
    requests = [ended(number, pool="pool-7") for number in range(60)]
    text = "\n".join(line.plain for line in snapshot(live(*pools, requests=requests), Look(80)))
    assert all(f"pool-{number}" in text for number in range(8))
    assert text.count("queued-49") == 8
    assert text.count("ended-") == 60


@pytest.mark.parametrize("gone", ["slots", "curve", "latency", "rates", "queue"])
def test_document_of_another_release_is_an_error_with_the_reason(gone: str) -> None:
    odd: dict[str, Any] = {name: value for name, value in pool().items() if name != gone}
    odd |= {"queue": [{}]} if gone == "queue" else {}
    with pytest.raises(InvalidDocument, match="must be of the same release"):
        screen(live(odd), Choice(), SMALL, "", "")
    with pytest.raises(InvalidDocument):
        snapshot(live(odd), SMALL)


def test_question_replaces_the_keys_and_contains_nothing_that_a_terminal_obeys() -> None:
    """It names a pool, as the sidecar has it; and so does a reason."""
    hostile = "drain the pool \x1b]0;owned\x07\r\nx? y/n"
    asked = shown(live(), note=hostile)
    assert asked[-1].startswith("drain the pool ")
    assert asked[-1].endswith("x? y/n")
    assert "".join(asked + shown(live(), away=hostile)).isprintable()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"), (0, "0"), (9.84, "9.8"), (12.0, "12"), (812.4, "812"), (99_999.0, "99999"),
        (123_456, "123k"), (1e10, "10000M"),
    ],
)  # fmt: skip
def test_numbers_are_short(value: float | None, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0.0 s"),
        (1.24, "1.2 s"),
        (75, "75 s"),
        (720, "12 min"),
        (7300, "2 h"),
        (400_000, "5 d"),
    ],
)
def test_durations_are_short(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_times_of_requests() -> None:
    assert [milliseconds(value) for value in (None, 12.4, 12_345)] == ["-", "12 ms", "12 s"]
    assert pair([80.0, 240.4]) == "80/240"
    assert pair(None) == "-"


@pytest.mark.parametrize("text", ["", "abc", "abcdefghij", "模型模型模型模型", "a模b模c模"])
@pytest.mark.parametrize("width", [0, 1, 2, 5, 8])
def test_fitted_text_has_its_width(text: str, width: int) -> None:
    assert cell_len(fitted(text, width)) == width
    assert cell_len(fitted(text, width, right=True)) == width


def test_sparkline_rises_with_its_values() -> None:
    assert sparkline([0, 4, 8], 8) == "▁▅█"
    assert sparkline([1, 2], 0) == "▁▁"


def test_slots_have_a_letter_each_and_many_share_one() -> None:
    few = owned(total=5, free=1, interactive=1, bulk=1, idle=1, closing=1)
    assert slots_row(few).plain == "ib-c."
    many = owned(total=256, free=1, interactive=200, bulk=55)
    assert slots_row(many).plain == "i" * 50 + "b" * 14 + "."


def test_counts_of_slots_are_whole_beside_a_row_of_many() -> None:
    slots = owned(total=64, free=60, interactive=1, bulk=1, idle=1, closing=1)
    [line] = [each for each in shown(live(pool(slots=slots))) if each.startswith("slots ")]
    assert line.rstrip().endswith("1 interactive  1 bulk  1 idle  1 closing  60 free")


def test_batches_have_a_line_each() -> None:
    row = {
        "batch": "batch_18ec26f65f754c1c911b77163705b4f9", "key": None, "status": "in_progress",
        "total": 3000, "completed": 1190, "failed": 10, "rows_per_s": 41.5,
        "ends_at": document()["at"] + 45_000,
    }  # fmt: skip
    lines = shown(live(batches=[row, row | {"failed": 0, "rows_per_s": None, "ends_at": None}]))
    found = [line for line in lines if line.startswith(" batch ")]
    assert found == [
        " batch 77163705b4f9 in_progress 1200/3000, 10 failed, 41.5 rows/s, ends in 45 s",
        " batch 77163705b4f9 in_progress 1190/3000",
    ]
