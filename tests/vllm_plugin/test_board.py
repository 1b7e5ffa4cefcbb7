"""The scheduler's state, and who is told of its changes."""

from __future__ import annotations

from vllm_plugin.board import Board, EngineFacts, Hardware, Listener, StepReport

US, THEM = "a" * 16, "b" * 16
LEASE = f"{US}.{1:032x}.4"

FACTS = EngineFacts(
    engine_version="0.32.0",
    pool="cloud",
    models=("tiny", "alias"),
    ctx_max=2048,
    profile="cloud",
    measurement_type="batched_online",
    batching=True,
    slots_total=8,
    epoch="e1",
    features={"speculative_decoding": False},
    hardware=Hardware("NVIDIA H100 80GB HBM3", 2, "BF16"),
)


def report(
    running: int = 0,
    waiting: int = 0,
    *,
    batch: int | None = None,
    usage: float = 0.0,
    preempted: int = 0,
    at_s: float = 100.0,
    decode_only: bool = True,
) -> StepReport:
    return StepReport(at_s, running, waiting, usage, preempted, batch, decode_only, 0.01)


def listening(board: Board, instance: str | None = US) -> tuple[Listener, list[None]]:
    """A listener, and one entry for each time that it was woken."""
    woken: list[None] = []
    listener = Listener(instance, lambda: woken.append(None))
    board.listen(listener)
    return listener, woken


def test_state_has_the_facts_and_the_counts() -> None:
    board = Board(FACTS)
    board.stepped(report(3, 1, batch=3, usage=0.25))
    state = board.state(None)
    assert state["engine"] == "vllm"
    assert state["engine_version"] == "0.32.0"
    assert state["models"] == ["tiny", "alias"]
    assert state["measurement_type"] == "batched_online"
    assert state["epoch"] == "e1"
    assert state["state"] == "ready"
    assert (state["running"], state["waiting"], state["slots_free"]) == (3, 1, 4)
    assert state["kv_cache_usage"] == 0.25
    assert state["steps_by_batch"] == {"3": [1, 0.01]}


def test_slots_free_is_never_negative() -> None:
    board = Board(FACTS)
    board.stepped(report(8, 5))
    assert board.moving(None)["slots_free"] == 0


def test_peak_is_the_most_that_was_ever_held() -> None:
    board = Board(FACTS)
    for running, waiting in ((2, 1), (5, 0), (0, 0)):
        board.stepped(report(running, waiting))
    assert board.moving(None)["peak"] == 5


def test_peak_sees_what_ended_within_its_step() -> None:
    """Counts are taken after a step: requests that ended in it are in its batch only."""
    board = Board(FACTS)
    board.stepped(report(0, 2, batch=6))
    assert board.moving(None)["peak"] == 8
    board.stepped(report(7, 2, batch=6))
    assert board.moving(None)["peak"] == 9


def test_prompts_that_wait_or_are_being_read_are_counted() -> None:
    board = Board(FACTS)
    board.stepped(StepReport(0.0, 5, 2, 0.1, 0, 5, False, 0.01, 900, decoding=3))
    assert board.moving(None)["prefilling"] == 4
    _, woken = listening(board)
    board.stepped(StepReport(0.0, 5, 2, 0.1, 0, 5, False, 0.01, 300, decoding=4))
    assert board.moving(None)["prefilling"] == 3
    assert len(woken) == 1
    board.stepped(report(5, batch=5))
    assert board.moving(None)["prefilling"] == 0


def test_preemptions_add_up() -> None:
    board = Board(FACTS)
    board.stepped(report(2, preempted=1))
    board.stepped(report(2, preempted=2))
    assert board.moving(None)["preemptions_total"] == 3


def test_report_without_a_step_is_no_step() -> None:
    board = Board(FACTS)
    board.stepped(report(1, batch=None))
    assert board.steps.count == 0
    board.stepped(report(1, batch=1))
    assert board.steps.count == 1


def test_listeners_are_woken_by_changes_only() -> None:
    board = Board(FACTS)
    board.entered(LEASE)
    _, woken = listening(board)
    board.stepped(report(1, batch=1, usage=0.1001))
    assert len(woken) == 1
    for _ in range(100):
        board.stepped(report(1, batch=1, usage=0.1002))
    assert len(woken) == 1, "steady decoding costs no wake-ups"
    assert board.steps.count == 101
    board.stepped(report(1, batch=1, usage=0.102))
    assert len(woken) == 2
    board.stepped(report(0, usage=0.102))
    assert len(woken) == 3
    board.stepped(report(0, usage=0.102, preempted=1))
    assert len(woken) == 4


def test_peak_that_only_the_batch_shows_wakes_listeners() -> None:
    board = Board(FACTS)
    board.stepped(report(1, batch=1))
    _, woken = listening(board)
    board.stepped(report(1, batch=5))
    assert len(woken) == 1


def test_requests_coming_and_going_wake_listeners() -> None:
    board = Board(FACTS)
    _, woken = listening(board)
    key = board.entered(None)
    assert key is not None
    board.left(key)
    assert len(woken) == 2


def test_spent_lease_is_turned_away_without_waking_anyone() -> None:
    board = Board(FACTS)
    board.leases.revoke(LEASE)
    _, woken = listening(board)
    assert board.entered(LEASE) is None
    assert woken == []


def test_end_of_a_lease_is_told_to_the_instance_that_gave_it() -> None:
    board = Board(FACTS)
    ours, theirs, nobodys = (listening(board, who)[0] for who in (US, THEM, None))
    key = board.entered(LEASE)
    assert key is not None
    board.left(key)
    assert (ours.ended, theirs.ended, nobodys.ended) == ([LEASE], [], [])


def test_end_of_a_request_without_a_lease_is_told_to_nobody() -> None:
    board = Board(FACTS)
    listener, _ = listening(board, None)
    key = board.entered("nonsense")
    assert key is not None
    board.left(key)
    assert listener.ended == []


def test_who_no_longer_listens_is_not_woken() -> None:
    board = Board(FACTS)
    listener, woken = listening(board)
    board.unlisten(listener)
    board.unlisten(listener)
    board.stepped(report(3))
    assert woken == []


def test_foreign_is_seen_from_each_instance() -> None:
    board = Board(FACTS)
    board.entered(LEASE)
    board.stepped(report(4))
    assert board.moving(US)["foreign"] == 0
    assert board.moving(THEM)["foreign"] == 4
    assert board.moving(None)["leased"] == 4
    board.entered(None)
    board.stepped(report(7))
    assert board.moving(US)["foreign"] == 3
    assert board.moving(THEM)["foreign"] == 7


def test_engine_says_of_itself_only_what_its_counts_say() -> None:
    """slots_free of the engine is about sequences, not about leases that are on their way."""
    board = Board(FACTS)
    board.entered(LEASE)
    assert board.moving(US)["slots_free"] == 8
