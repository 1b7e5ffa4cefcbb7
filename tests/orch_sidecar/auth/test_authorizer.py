"""Authentication by API keys, and the limit of each. Literal times, no event loop."""

from __future__ import annotations

import random
from ipaddress import ip_network
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from orch_sidecar.api.endpoints import ENDPOINTS, UI_FILES, WITHOUT_KEY
from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.auth import keys
from orch_sidecar.auth.authorizer import Authorizer, Head, interactive_forbidden
from orch_sidecar.auth.keys import ApiKey, Keys, new_key

KEY = new_key(b"k" * 32)
CHAT = "/v1/chat/completions"


def known(concurrency: int | None = None) -> Keys:
    return keys.parse(keys.entry_of(KEY, "alice", concurrency=concurrency))


def checked(
    *headers: tuple[str, str], path: str = CHAT, guard: Authorizer | None = None
) -> ApiKey | Refusal | None:
    return (guard or Authorizer(known())).check(path, head_of(*headers))


def raw(value: str | None) -> bytes | None:
    return None if value is None else value.encode("utf-8", "surrogateescape")


def head_of(*fields: tuple[str, str]) -> Head:
    headers = CIMultiDict(fields)
    return cast(
        Head,
        SimpleNamespace(
            headers=headers, host=raw(headers.get("Host")), credential=raw(keys.credential(headers))
        ),
    )


def entry(held: Keys) -> ApiKey:
    [found] = held
    return found


def test_without_keys_all_clients_are_served() -> None:
    guard = Authorizer(None)
    assert not guard.requires_keys
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
def test_key_identifies_its_client(header: tuple[str, str]) -> None:
    found = checked(header)
    assert isinstance(found, ApiKey)
    assert found.name == "alice"


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([], "has no API key"),
        ([("Authorization", "")], "has no API key"),
        ([("Authorization", "Bearer ")], "has no API key"),
        ([("Authorization", "Bearer")], "has no API key"),
        ([("X-Api-Key", "")], "has no API key"),
        ([("Authorization", f"Basic {KEY}")], "does not contain an API key"),
        ([("Authorization", KEY)], "does not contain an API key"),
        ([("Authorization", "Basic x"), ("X-Api-Key", KEY)], "does not contain an API key"),
        ([("Authorization", f"Bearer {KEY}x")], "is not known"),
        ([("Authorization", f"Bearer {KEY} {KEY}")], "is not known"),
        ([("Authorization", "Bearer x"), ("X-Api-Key", KEY)], "is not known"),
        ([("X-Api-Key", b"\xff".decode("utf-8", "surrogateescape"))], "is not known"),
        ([("X-Api-Key", "x" * 512)], "is not known"),
        ([("X-Api-Key", "x" * 513)], "more than 512 bytes"),
        ([("X-Api-Key", "é" * 257)], "more than 512 bytes"),
    ],
)
def test_invalid_key_is_rejected_and_not_repeated(
    headers: list[tuple[str, str]], expected: str
) -> None:
    refusal = checked(*headers)
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.UNAUTHORIZED
    assert expected in refusal.message
    assert KEY not in refusal.message


def test_key_that_is_too_long_is_not_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(_: bytes) -> None:
        raise AssertionError("it was hashed")

    monkeypatch.setattr("orch_sidecar.auth.keys.hashlib.sha256", never)
    assert isinstance(checked(("X-Api-Key", "x" * 513), guard=Authorizer(Keys([]))), Refusal)
    with pytest.raises(AssertionError, match="hashed"):
        checked(("X-Api-Key", "x"), guard=Authorizer(Keys([])))


def test_only_probes_prometheus_and_the_files_of_the_page_need_no_key() -> None:
    assert {
        "/",
        *UI_FILES,
        "/livez",
        "/readyz",
        "/healthz",
        "/health",
        "/ping",
        "/load",
        "/metrics",
        "/metrics/model-server",
    } == WITHOUT_KEY
    for path in WITHOUT_KEY:
        assert checked(path=path) is None
    guarded = [
        *ENDPOINTS.keys() - WITHOUT_KEY,
        "/v1/capabilities/leases/x",
        "/v1/pools/a/health",
        "/x",
    ]
    assert "/v1/capabilities/stream" in guarded
    for path in (*guarded, "/livez/", "/metrics/", "//metrics", "/METRICS", "/metrics/other", ""):
        assert isinstance(checked(path=path), Refusal), path


def test_metrics_need_no_key_but_one_that_is_sent_is_checked() -> None:
    assert isinstance(checked(("Authorization", f"Bearer {KEY}"), path="/metrics"), ApiKey)
    for header in (("X-Api-Key", "nobody's"), ("Authorization", "Basic x")):
        refusal = checked(header, path="/metrics")
        assert isinstance(refusal, Refusal)
        assert refusal.reason is Reason.UNAUTHORIZED
        for path in ("/livez", "/metrics/model-server"):
            assert checked(header, path=path) is None


def test_the_engines_own_metrics_need_a_key_for_metrics() -> None:
    sent = ("X-Api-Key", KEY)
    refusal = checked(sent, path="/metrics/engine")
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.FORBIDDEN
    assert "metrics: true" in refusal.message
    guard = Authorizer(keys.parse(keys.entry_of(KEY, "prometheus", metrics=True)))
    found = checked(sent, guard=guard, path="/metrics/engine")
    assert isinstance(found, ApiKey)
    assert guard.sees_all(found)
    assert not guard.sees_all(None)
    assert not guard.sees_all(ApiKey("alice", b""))
    assert Authorizer(None).sees_all(None)


@pytest.mark.parametrize(
    ("parents", "holder", "permitted"),
    [
        ("keys", None, False),
        ("keys", "alice", False),
        ("keys", "entry", True),
        ("keys", "removed", False),
        ("open", None, False),
        ("open", "alice", True),
        ("open", "entry", True),
        ("open", "removed", False),
    ],
)
def test_parent_is_who_has_the_key_of_a_sidecar_or_where_all_are_trusted_any_client(
    parents: str, holder: str | None, permitted: bool
) -> None:
    held = keys.parse(keys.entry_of("a", "alice") + keys.entry_of("b", "entry", sidecar=True))
    by_name: dict[str, ApiKey] = {each.name: each for each in held}
    by_name["removed"] = ApiKey("removed", b"r" * 32, sidecar=True)
    key = None if holder is None else by_name[holder]
    guard = Authorizer(held, parents=parents)
    assert guard.permits(key, parent=True) is permitted
    assert guard.permits(key) is (holder in ("alice", "entry"))


@pytest.mark.parametrize(("parents", "permitted"), [("keys", False), ("open", True)])
def test_without_keys_nobody_is_a_parent_unless_all_are_trusted(
    parents: str, permitted: bool
) -> None:
    guard = Authorizer(None, parents=parents)
    assert guard.permits(None, parent=True) is permitted
    assert guard.permits(None)


def test_sequences_of_a_key_are_limited() -> None:
    guard = Authorizer(known(3))
    key = entry(known(3))
    assert guard.enter(key, 2, 0.0) is None
    refusal = guard.enter(key, 2, 0.0)
    assert refusal is not None
    assert refusal.reason is Reason.KEY_CONCURRENCY
    for part in ("needs 2 sequences", "limited to 3 at once", "2 are queued"):
        assert part in refusal.message
    all_of_it = guard.enter(key, 3, 0.0)
    assert all_of_it is not None
    assert all_of_it.reason is Reason.KEY_CONCURRENCY, "it fits when the others have ended"
    assert guard.enter(key, 1, 0.0) is None
    assert guard.sequences(key) == 3
    guard.leave(key, 2, 1.0)
    assert guard.enter(key, 2, 1.0) is None


def test_retry_is_predicted_from_the_release_rate_of_the_key() -> None:
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


def test_usage_of_a_removed_key_is_counted_until_its_requests_end() -> None:
    guard, key = Authorizer(known(2)), entry(known(2))
    assert guard.enter(key, 2, 0.0) is None
    guard.set_keys(Keys([]), 0.0)
    guard.set_keys(known(2), 0.0)  # it comes back
    assert guard.enter(key, 1, 0.0) is not None
    guard.set_keys(Keys([]), 0.0)
    guard.leave(key, 2, 1.0)
    assert not guard._usage
    with pytest.raises(KeyError):
        guard.leave(key, 2, 1.0)


@pytest.mark.parametrize(
    ("host", "allowed", "keyed", "paths"),
    [
        ("127.0.0.1", [], False, {CHAT: 403, "/metrics": 403, "/ui": 403, "/readyz": None}),
        ("localhost", [], False, {CHAT: 403, "/v1/capabilities": 403, "/health": None}),
        ("::1", [], True, {CHAT: 401, "/metrics": None}),
        ("0.0.0.0", [], False, {CHAT: None}),
        ("0.0.0.0", ["orch"], False, {CHAT: 403, "/livez": None}),
        ("::", ["orch"], True, {CHAT: 403, "/metrics": 403, "/healthz": None}),
    ],
)
def test_host_is_checked_on_the_loopback_without_keys_and_where_names_are_configured(
    host: str, allowed: list[str], keyed: bool, paths: dict[str, int | None]
) -> None:
    guard = Authorizer(known() if keyed else None, host=host, allowed_hosts=allowed)
    statuses = {Reason.FORBIDDEN: 403, Reason.UNAUTHORIZED: 401}
    for path, expected in paths.items():
        found = checked(("Host", "evil.example"), path=path, guard=guard)
        assert (statuses[found.reason] if isinstance(found, Refusal) else found) == expected
        named = checked(("Host", (allowed or ["localhost"])[0]), path=path, guard=guard)
        assert not isinstance(named, Refusal) or named.reason is Reason.UNAUTHORIZED


def test_keys_that_come_later_end_the_check_of_the_host() -> None:
    """A rebound page has no key; a name of this sidecar that nobody configured may."""
    guard = Authorizer(None, host="127.0.0.1")
    host, key = ("Host", "orch.example"), ("X-Api-Key", KEY)
    assert isinstance(checked(host, key, guard=guard), Refusal)
    guard.set_keys(known(), 0.0)
    assert isinstance(checked(host, key, guard=guard), ApiKey)
    assert isinstance(checked(host, guard=guard), Refusal)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("10.1.2.3", True), ("fd00::7", True), ("192.0.2.7", True), ("192.0.2.8", False),
        ("11.0.0.1", False), ("fd01::7", False), ("", False), ("/run/socket", False),
    ],
)  # fmt: skip
def test_gateways_are_known_by_address_or_by_key(address: str, expected: bool) -> None:
    networks = [ip_network(each) for each in ("10.0.0.0/8", "fd00::/64", "192.0.2.7")]
    guard = Authorizer(None, gateways=networks)
    assert guard.may_name_flows(None, address) is expected
    assert guard.may_name_flows(ApiKey("gateway", b"g", gateway=True), address)
    assert not guard.may_name_flows(ApiKey("alice", b"a", sidecar=True, metrics=True), address)
    assert not Authorizer(None).may_name_flows(None, address)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 5)), max_size=60))
def test_limit_of_each_key_is_never_exceeded(steps: list[tuple[int, int]]) -> None:
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
            assert guard.sequences(each) == sum(costs)
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
def test_refusal_of_the_interactive_class_names_the_header(
    headers: list[tuple[str, str]], name: str
) -> None:
    refusal = interactive_forbidden(CIMultiDict(headers))
    assert refusal.reason is Reason.CLASS_FORBIDDEN
    assert refusal.param == name
    assert refusal.message.startswith(f"{name} is {headers[-1][1]!r}, but this API key is for bulk")


def test_request_without_the_interactive_class_has_no_such_refusal() -> None:
    with pytest.raises(ValueError, match="asks for the interactive"):
        interactive_forbidden(CIMultiDict([("X-Orch-Class", "bulk")]))
