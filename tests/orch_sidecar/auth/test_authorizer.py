"""Who is served, as what, and how much of it at once. Literal times, no event loop."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from orch_sidecar.api.endpoints import ENDPOINTS
from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.auth import keys
from orch_sidecar.auth.authorizer import OPEN, Authorizer, only_bulk
from orch_sidecar.auth.keys import ApiKey, Keys, new_key

KEY = new_key(b"k" * 32)
CHAT = "/v1/chat/completions"


def known(concurrency: int | None = None) -> Keys:
    return keys.parse(keys.entry_of(KEY, "alice", concurrency=concurrency))


def checked(
    *headers: tuple[str, str], path: str = CHAT, guard: Authorizer | None = None
) -> ApiKey | Refusal | None:
    return (guard or Authorizer(known())).check(path, CIMultiDict(headers))


def entry(held: Keys) -> ApiKey:
    [found] = held
    return found


def test_without_keys_everybody_is_served() -> None:
    guard = Authorizer(None)
    assert not guard.closed
    assert checked(guard=guard) is None
    assert checked(("Authorization", "Basic x"), guard=guard) is None


@pytest.mark.parametrize(
    "header",
    [
        ("Authorization", f"Bearer {KEY}"),
        ("authorization", f"BEARER {KEY}"),
        ("X-Api-Key", KEY),
        ("x-api-key", KEY),
    ],
)
def test_key_says_who_it_is(header: tuple[str, str]) -> None:
    found = checked(header)
    assert isinstance(found, ApiKey)
    assert found.name == "alice"


@pytest.mark.parametrize(
    ("headers", "told"),
    [
        ([], "an API key is needed"),
        ([("Authorization", "")], "an API key is needed"),
        ([("Authorization", "Bearer ")], "an API key is needed"),
        ([("Authorization", "Bearer")], "an API key is needed"),
        ([("X-Api-Key", "")], "an API key is needed"),
        ([("Authorization", f"Basic {KEY}")], "must be Bearer"),
        ([("Authorization", KEY)], "must be Bearer"),
        ([("Authorization", "Basic x"), ("X-Api-Key", KEY)], "must be Bearer"),
        ([("Authorization", f"Bearer {KEY}x")], "not known here"),
        ([("Authorization", f"Bearer {KEY} {KEY}")], "not known here"),
        ([("Authorization", "Bearer x"), ("X-Api-Key", KEY)], "not known here"),
        ([("X-Api-Key", b"\xff".decode("utf-8", "surrogateescape"))], "not known here"),
        ([("X-Api-Key", "x" * 512)], "not known here"),
        ([("X-Api-Key", "x" * 513)], "more than 512 bytes"),
        ([("X-Api-Key", "é" * 257)], "more than 512 bytes"),
    ],
)
def test_who_has_no_key_is_refused_and_the_key_is_not_repeated(
    headers: list[tuple[str, str]], told: str
) -> None:
    refusal = checked(*headers)
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.UNAUTHORIZED
    assert told in refusal.message
    assert KEY not in refusal.message


def test_a_key_that_is_too_long_is_not_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(_: bytes) -> None:
        raise AssertionError("it was hashed")

    monkeypatch.setattr("orch_sidecar.auth.keys.hashlib.sha256", never)
    assert isinstance(checked(("X-Api-Key", "x" * 513), guard=Authorizer(Keys([]))), Refusal)
    with pytest.raises(AssertionError, match="hashed"):
        checked(("X-Api-Key", "x"), guard=Authorizer(Keys([])))


def test_probes_and_prometheus_need_no_key_and_all_else_does() -> None:
    assert {"/livez", "/readyz", "/healthz", "/health", "/metrics", "/metrics/engine"} == OPEN
    for path in OPEN:
        assert checked(path=path) is None
    guarded = [*ENDPOINTS.keys() - OPEN, "/v1/capabilities/leases/x", "/v1/pools/a/health", "/x"]
    assert "/v1/capabilities/stream" in guarded
    for path in (*guarded, "/livez/", "/metrics/", "//metrics", "/METRICS", "/metrics/other", ""):
        assert isinstance(checked(path=path), Refusal), path


def test_other_keys_hold_at_once_and_no_others() -> None:
    guard = Authorizer(None)
    guard.hold(known())
    assert guard.closed
    assert isinstance(checked(("X-Api-Key", KEY), guard=guard), ApiKey)
    other = new_key(b"o" * 32)
    guard.hold(keys.parse(keys.entry_of(other, "alice")))
    assert isinstance(checked(("X-Api-Key", KEY), guard=guard), Refusal)
    assert isinstance(checked(("X-Api-Key", other), guard=guard), ApiKey)


def test_no_more_sequences_of_a_key_are_served_at_once_than_it_may_have() -> None:
    guard = Authorizer(known(3))
    key = entry(known(3))
    assert guard.enter(key, 2, 0.0) is None
    refusal = guard.enter(key, 2, 0.0)
    assert refusal is not None
    assert refusal.reason is Reason.KEY_CONCURRENCY
    for part in ("2 sequences", "needs 2 more", "3 at once"):
        assert part in refusal.message
    assert guard.enter(key, 1, 0.0) is None
    assert guard.in_use(key) == 3
    guard.leave(key, 2, 1.0)
    assert guard.enter(key, 2, 1.0) is None


def test_request_that_no_wait_can_help_is_not_told_to_come_back() -> None:
    guard, key = Authorizer(known(3)), entry(known(3))
    refusal = guard.enter(key, 4, 0.0)
    assert refusal is not None
    assert (refusal.reason, refusal.retry_after_ms) == (Reason.COST_EXCEEDS_KEY, None)
    assert "needs 4 sequences" in refusal.message
    assert "may have 3" in refusal.message


def test_who_is_refused_is_told_when_enough_of_that_key_will_have_ended() -> None:
    guard, key = Authorizer(known(8), random.Random(1)), entry(known(8))
    assert guard.enter(key, 8, 0.0) is None
    refusal = guard.enter(key, 2, 0.0)
    assert refusal is not None
    assert 1000 <= (refusal.retry_after_ms or 0) <= 1250, "nothing is known of the rate yet"
    for at in range(1, 6):
        guard.leave(key, 1, 0.5 * at)
        assert guard.enter(key, 1, 0.5 * at) is None
    refusal = guard.enter(key, 4, 2.5)
    assert refusal is not None
    assert 2000 <= (refusal.retry_after_ms or 0) <= 2500, "4 sequences at 2 per second"


def test_a_limit_that_changes_holds_for_what_comes_and_counts_what_runs() -> None:
    guard = Authorizer(known())
    assert guard.enter(entry(known()), 5, 0.0) is None
    guard.hold(known(4))
    refusal = guard.enter(entry(known(4)), 1, 0.0)
    assert refusal is not None
    assert refusal.reason is Reason.KEY_CONCURRENCY
    guard.leave(entry(known()), 5, 1.0)
    assert guard.enter(entry(known(4)), 4, 1.0) is None


def test_what_runs_with_a_key_that_is_gone_is_counted_to_its_end_and_then_forgotten() -> None:
    guard, key = Authorizer(known(2)), entry(known(2))
    assert guard.enter(key, 2, 0.0) is None
    guard.hold(Keys([]))
    guard.hold(known(2))  # it comes back
    assert guard.enter(key, 1, 0.0) is not None
    guard.hold(Keys([]))
    guard.leave(key, 2, 1.0)
    assert not guard._in_use
    with pytest.raises(KeyError):
        guard.leave(key, 2, 1.0)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 5)), max_size=60))
def test_limit_holds_for_each_key_whatever_comes_and_goes(steps: list[tuple[int, int]]) -> None:
    limits = (4, 2, None)
    held = Keys(ApiKey(str(i), bytes([i] * 32), False, limit) for i, limit in enumerate(limits))
    guard, running = Authorizer(held), {key: list[int]() for key in held}
    for step, (which, cost) in enumerate(steps):
        key = list(held)[which]
        if guard.enter(key, cost, float(step)) is None:
            running[key].append(cost)
        elif running[key]:
            guard.leave(key, running[key].pop(0), float(step))
        for each, costs in running.items():
            assert guard.in_use(each) == sum(costs)
            assert each.concurrency is None or sum(costs) <= each.concurrency


@pytest.mark.parametrize(
    ("headers", "name"),
    [
        ([("X-Orch-Class", "Interactive")], "X-Orch-Class"),
        ([("x-smg-priority", "system")], "x-smg-priority"),
        ([("x-llm-d-inference-objective", "critical")], "x-llm-d-inference-objective"),
        (
            [("x-smg-priority", "default"), ("x-llm-d-inference-objective", "interactive")],
            "x-llm-d-inference-objective",
        ),
    ],
)
def test_who_demands_more_than_bulk_is_told_by_which_header(
    headers: list[tuple[str, str]], name: str
) -> None:
    refusal = only_bulk(CIMultiDict(headers))
    assert refusal.reason is Reason.CLASS_FORBIDDEN
    assert refusal.param == name
    assert refusal.message == f"{name}: {headers[-1][1]!r}: this API key is for bulk requests only"


def test_who_does_not_demand_it_is_not_told_so() -> None:
    with pytest.raises(ValueError, match="does not demand"):
        only_bulk(CIMultiDict([("X-Orch-Class", "bulk")]))
