"""How often a key may ask for signed statements. Literal times."""

from __future__ import annotations

from orch_sidecar.api.refusal import Reason
from orch_sidecar.auth import keys
from orch_sidecar.auth.authorizer import STATEMENTS_PER_MINUTE, Authorizer
from orch_sidecar.auth.keys import ApiKey, Keys, new_key


def key(name: str, *, sidecar: bool = False) -> ApiKey:
    [found] = keys.parse(keys.entry_of(new_key(name.encode() * 32), name, sidecar=sidecar))
    return found


def asked(authorizer: Authorizer, by: ApiKey, times: int, now: float = 0.0) -> int:
    """How many of so many requests at one time are served."""
    return sum(authorizer.ask_statement(by, now) is None for _ in range(times))


def test_key_may_ask_once_per_second_for_long_and_sixty_times_at_once() -> None:
    alice = key("a")
    authorizer = Authorizer(Keys([alice]))
    assert asked(authorizer, alice, 100) == STATEMENTS_PER_MINUTE
    refusal = authorizer.ask_statement(alice, 0.25)
    assert refusal is not None
    assert (refusal.reason, refusal.retry_after_ms) == (Reason.KEY_REQUESTS, 750)
    assert [asked(authorizer, alice, 5, 1.0 + at_s) for at_s in range(300)] == [1] * 300


def test_keys_do_not_limit_each_other() -> None:
    authorizer = Authorizer(Keys([key("a"), key("b")]))
    assert asked(authorizer, key("a"), 1000) == STATEMENTS_PER_MINUTE
    assert asked(authorizer, key("b"), 2) == 2


def test_sidecars_limit_their_own_clients() -> None:
    sidecar = key("s", sidecar=True)
    assert asked(Authorizer(Keys([sidecar])), sidecar, 1000) == 1000


def test_key_that_was_away_may_not_ask_more() -> None:
    alice, other = key("a"), Keys([key("b")])
    authorizer = Authorizer(Keys([alice]))
    assert asked(authorizer, alice, 100) == STATEMENTS_PER_MINUTE
    authorizer.set_keys(other, 1.0)
    authorizer.set_keys(Keys([alice]), 2.0)
    assert asked(authorizer, alice, 100, 2.0) == 2
    authorizer.set_keys(other, 100.0)
    assert not authorizer._usage
