"""Workers that have died are told from those that are slow."""

from __future__ import annotations

from orch_sidecar.batches.runner import DEAD_AFTER_LOOKS, LOOK_EVERY_S, Peers


def looks(peers: Peers, count: int, *, own: int = 0, every_s: float = LOOK_EVERY_S) -> list[str]:
    """So many looks, at which the beat of `other` stays the same; what the last one finds."""
    found: list[str] = []
    for number in range(1, count + 1):
        own += 1
        found = peers.dead({"own": own, "other": 3}, own * every_s)
        assert number == count or not found
    return found


def test_worker_whose_beat_stays_the_same_is_dead() -> None:
    peers = Peers("own")
    assert looks(peers, DEAD_AFTER_LOOKS + 1) == ["other"]


def test_looks_in_quick_succession_count_as_one() -> None:
    peers = Peers("own")
    assert looks(peers, DEAD_AFTER_LOOKS, every_s=LOOK_EVERY_S) == []
    assert peers.dead({"other": 3}, DEAD_AFTER_LOOKS * LOOK_EVERY_S + 0.01) == []


def test_nobody_dies_while_the_database_is_away() -> None:
    """Hours between two looks are one look."""
    peers = Peers("own")
    peers.dead({"other": 3}, LOOK_EVERY_S)
    assert peers.dead({"other": 3}, 10_000.0) == []


def test_worker_does_not_find_itself_dead() -> None:
    peers = Peers("own")
    for number in range(1, 3 * DEAD_AFTER_LOOKS):
        assert peers.dead({"own": 3}, number * LOOK_EVERY_S) == []
