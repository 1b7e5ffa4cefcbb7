"""How often a key may ask for signed statements. Literal times."""

from __future__ import annotations

from orch_sidecar.api.refusal import Reason
from orch_sidecar.auth import keys
from orch_sidecar.auth.keys import ApiKey, new_key
from orch_sidecar.auth.statement_limit import PER_MINUTE, StatementLimit


def key(name: str, *, sidecar: bool = False) -> ApiKey:
    [found] = keys.parse(keys.entry_of(new_key(name.encode() * 32), name, sidecar=sidecar))
    return found


def asked(limit: StatementLimit, by: ApiKey | None, times: int, now: float = 0.0) -> int:
    """How many of so many requests at one time are served."""
    return sum(limit.ask(by, now) is None for _ in range(times))


def test_key_may_ask_once_per_second_for_long_and_sixty_times_at_once() -> None:
    limit, alice = StatementLimit(), key("a")
    assert asked(limit, alice, 100) == PER_MINUTE
    refusal = limit.ask(alice, 0.25)
    assert refusal is not None
    assert (refusal.reason, refusal.retry_after_ms) == (Reason.KEY_REQUESTS, 750)
    assert [asked(limit, alice, 5, 1.0 + at_s) for at_s in range(300)] == [1] * 300


def test_keys_do_not_limit_each_other() -> None:
    limit = StatementLimit()
    assert asked(limit, key("a"), 1000) == PER_MINUTE
    assert asked(limit, key("b"), 2) == 2


def test_sidecars_limit_their_own_clients_and_without_keys_the_engine_does() -> None:
    for each in (key("s", sidecar=True), None):
        assert asked(StatementLimit(), each, 1000) == 1000


def test_key_that_asks_for_ever_is_remembered_once() -> None:
    limit, alice = StatementLimit(), key("a")
    for at_s in range(1000):
        limit.ask(alice, float(at_s))
    assert len(limit._asked) == 1
