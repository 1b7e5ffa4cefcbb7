"""Clients with API keys, and others: which are served, what is guarded, and where keys end.

What a key may have: the class, how many sequences at once, budgets and shares.
"""

from __future__ import annotations

import logging

import pytest

from orch_sidecar.api.endpoints import ENDPOINTS, STREAM, WITHOUT_KEY
from orch_sidecar.auth.keys import Keys, new_key
from tests.integration.cancelling import cancel, named, new_id
from tests.integration.client import CHAT, COMPLETIONS, MESSAGES, RESPONSES, Response
from tests.integration.held import Held, started
from tests.integration.keyed import KeyRing
from tests.integration.otlp import Collect
from tests.integration.running import Running, Start, eventually, total
from tests.integration.scripted_engine import ScriptedEngine
from tests.integration.scripts import breaks_off, endless, resets
from tests.integration.tiers import empty, tier
from tests.integration.wire import Answer

KEYS = {
    "alice": {},
    "bob": {},
    "two": {"concurrency": 2},
    "bulk": {"bulk": True},
    "heavy": {"weight": 3},
    "frugal": {"tokens_per_minute": 10_000, "requests_per_minute": 3},
    "poor": {"tokens_per_minute": 60},
    "small": {"tokens_per_minute": 600},
    "prometheus": {"metrics": True},
}

NOBODYS = new_key(b"n" * 32)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES, MESSAGES])
async def test_key_opens_as_bearer_and_as_x_api_key_and_goes_no_further(
    keyed: Running, ring: KeyRing, engine: ScriptedEngine, path: str
) -> None:
    client = await keyed.client()
    for header in (ring.bearer("alice"), ring.x_api_key("alice")):
        assert (await client.post(path, [header])).status == 200
        assert (await client.post(path, [header], stream=True)).status == 200
        if path in (CHAT, COMPLETIONS):
            assert (await client.post(path, [header], temperature=0)).status == 200  # shared
    assert (await client.get("/v1/models", [ring.bearer("alice")])).status == 200
    assert (await client.get("/metrics/engine", [ring.bearer("prometheus")])).status == 200
    assert len(engine.received) >= 6
    for request in engine.received:
        assert request.header("authorization") is None
        assert request.header("x-api-key") is None
        for key in ring.keys.values():
            assert key.encode() not in request.head + request.body


async def test_all_is_guarded_but_probes_and_metrics(keyed: Running, ring: KeyRing) -> None:
    client = await keyed.client()
    for path, route in ENDPOINTS.items():
        body = b"{}" if route.method == "POST" else None
        status = (await client.request(route.method, path, body)).status
        assert (status == 401) == (path not in WITHOUT_KEY), path
    others = [("GET", "/nowhere"), ("GET", "/v1/pools/cloud/health"), ("GET", "//metrics")]
    others += [("DELETE", "/v1/capabilities/leases/x"), ("POST", f"/v1/requests/{new_id()}/cancel")]
    for method, path in others:
        assert (await client.request(method, path)).status == 401, path
    alice = [ring.bearer("alice")]
    assert (await client.get("/v1/capabilities", alice)).status == 200
    assert (await client.get("/v1/pools/cloud/health", alice)).status == 200
    assert (await client.get("/nowhere", alice)).status == 404
    metrics = await keyed.metrics()
    refused = {"outcome": "unauthorized", "pool": "none", "route": STREAM, "status": 401}
    assert total(metrics, "orch_requests_total", **refused) == 1


async def test_key_is_in_no_log_no_span_and_no_metric(
    start: Start, ring: KeyRing, collect: Collect, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        running = await start(api_keys_file=ring.path)
        client = await running.client()
        for header in (ring.bearer("alice"), ring.x_api_key("bob"), ("x-api-key", NOBODYS)):
            await client.post(headers=[header])
            await client.post(headers=[header], temperature=0, stream=True)
            await client.post(headers=[header], n=9)
            await client.get("/nowhere", [header])
            await client.get("/v1/capabilities", [header])
        ring.remove("bob")
        await running.sidecar.reloader.reload()
        metrics = (await client.get("/metrics", [ring.bearer("prometheus")])).body
        shown = metrics + (await client.get("/readyz")).body
    collector = await collect(running)
    assert collector.spans
    assert caplog.messages
    shown += b"".join(collector.requests) + caplog.text.encode()
    for key in (*ring.keys.values(), NOBODYS):
        assert key[8:24].encode() not in shown
    for name in ring.keys:
        assert name.encode() not in b"".join(collector.requests)


async def test_sidecar_above_has_a_key_for_all_that_it_asks(
    start: Start, ring: KeyRing, held: Held
) -> None:
    """The stream of states, requests, and the leases of requests that were given up."""
    lower = await start(api_keys_file=ring.path)
    parent_leases = await start(pools=[tier(lower, api_key=ring.keys["alice"])])
    client = await started(parent_leases)
    await eventually(lambda: held.waiting)
    held.release()
    assert (await client.response()).status == 200
    gone = await started(parent_leases, seed=1)
    await eventually(lambda: held.waiting)
    await gone.close()
    await eventually(lambda: not held.waiting)
    await empty(parent_leases, lower)
    refused = await start(pools=[tier(lower, api_key=NOBODYS)], wait=False)
    await eventually(lambda: refused.sidecar.state == "unusable")
    response = await (await refused.client()).post()
    assert (response.status, response.error["code"]) == (503, "engine_refuses_key")


def in_use(running: Running, name: str) -> int:
    guard = running.sidecar.frontend._authorizer
    held = guard.keys
    assert isinstance(held, Keys)
    return next(guard.sequences(each) for each in held if each.name == name)


async def test_key_for_bulk_is_served_as_bulk_whatever_the_body_demands(
    keyed: Running, ring: KeyRing, engine: ScriptedEngine
) -> None:
    client = await keyed.client()
    for extra in ({}, {"service_tier": "default"}, {"priority": 0}, {"service_tier": "flex"}):
        assert (await client.post(headers=[ring.bearer("bulk")], **extra)).status == 200
    header = ("X-Orch-Class", "bulk")
    assert (await client.post(headers=[ring.bearer("bulk"), header])).status == 200
    assert (await client.post(headers=[ring.bearer("alice")])).status == 200
    counts = {
        name: value
        for name, value in (await keyed.metrics()).items()
        if name.startswith("orch_admission_wait_seconds_count")
    }
    assert sorted(counts.values()) == [0, 1, 5]
    [bulk] = [name for name, value in counts.items() if value == 5]
    assert 'class="bulk"' in bulk
    assert len({request.header("x-vllm-priority") for request in engine.generating[:5]}) == 1


def assert_too_many(response: Response) -> None:
    assert (response.status, response.error["code"]) == (429, "ADMISSION_KEY_CONCURRENCY")
    assert response.error["policy_label"] == "key-concurrency"
    assert response.error["retriable"] is True
    assert int(response.header("retry-after") or "0") >= 1
    assert response.header("retry-after-ms") == str(response.error["retry_after_ms"])


@pytest.mark.parametrize("end", ["disconnect", "cancel", "refuse", "fail", "stream"])
async def test_however_a_request_ends_its_sequences_are_given_back_once(
    keyed: Running, ring: KeyRing, engine: ScriptedEngine, end: str
) -> None:
    two, held = [ring.bearer("two")], Held()

    client = await keyed.client()
    if end in ("disconnect", "cancel"):
        engine.answer = held
        request_id = new_id()
        busy = await started(keyed, headers=[*two, named(request_id)], n=2)
        await eventually(lambda: held.waiting)
        assert_too_many(await client.post(headers=two))
        if end == "disconnect":
            await busy.close()
        else:
            assert (await cancel(keyed, request_id, *two)).status == 204
            assert (await busy.response()).status == 499
    elif end == "refuse":
        response = await client.post(headers=[*two, ("X-Orch-Pool", "other")])
        assert response.status == 400
    elif end == "fail":
        engine.answer = resets
        assert (await client.post(headers=two, n=2)).status == 502
    else:
        engine.answer = breaks_off
        client.start(CHAT, two, stream=True, n=2)
        assert b"engine_failed" in (await client.response()).body
    await eventually(lambda: in_use(keyed, "two") == 0)
    await keyed.idle()
    engine.answer = held
    again = await started(keyed, headers=two, n=2)
    await eventually(lambda: held.waiting)
    assert in_use(keyed, "two") == 2
    assert_too_many(await client.post(headers=two))
    held.release_all()
    assert (await again.response()).status == 200


def left(response: Response, what: str) -> int:
    return int(response.header(f"x-ratelimit-remaining-{what}") or "-1")


@pytest.mark.parametrize("stream", [False, True])
async def test_responses_report_the_budgets_of_the_key(
    keyed: Running, ring: KeyRing, stream: bool
) -> None:
    client = await keyed.client()
    frugal = [ring.bearer("frugal")]
    first = await client.post(headers=frugal, stream=stream)
    assert first.status == 200
    assert first.header("x-ratelimit-limit-requests") == "3"
    assert first.header("x-ratelimit-limit-tokens") == "10000"
    assert left(first, "requests") == 2
    assert 9000 < left(first, "tokens") < 10_000
    assert first.header("x-ratelimit-reset-requests") == "20s"
    assert first.header("x-ratelimit-reset-tokens")
    free = await client.post(headers=[ring.bearer("alice")], stream=stream)
    assert free.header("x-ratelimit-limit-requests") is None


@pytest.mark.parametrize("path", [None, MESSAGES])
async def test_requests_beyond_the_budget_are_refused_with_the_time_of_the_next_room(
    keyed: Running, ring: KeyRing, engine: ScriptedEngine, path: str | None
) -> None:
    client = await keyed.client()
    frugal = [ring.bearer("frugal")]
    for _ in range(3):
        assert (await client.post(headers=frugal)).status == 200
    response = await (client.post(path, frugal) if path else client.post(headers=frugal))
    assert response.status == 429
    assert response.error["code"] == "rate_limit_exceeded"
    assert response.error["policy_label"] == "key-requests"
    assert response.error["retriable"] is True
    assert left(response, "requests") == 0
    wait_ms = int(response.header("retry-after-ms") or "0")
    assert 10_000 < wait_ms <= 20_000
    assert int(response.header("retry-after") or "0") == -(-wait_ms // 1000)
    assert len(engine.generating) == 3
    assert (await client.post(headers=[ring.bearer("alice")])).status == 200


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize", "/v1/messages/count_tokens"])
async def test_bodies_that_need_no_slot_count_against_the_budgets(
    keyed: Running, ring: KeyRing, engine: ScriptedEngine, path: str
) -> None:
    """A request each, and a prompt of its size; the output is none, and nothing comes back."""
    client, frugal, body = await keyed.client(), [ring.bearer("frugal")], {"prompt": "x" * 8000}
    small = await client.request("POST", path, {"prompt": "x"}, frugal)
    assert (left(small, "requests"), left(small, "tokens")) == (2, 9995)
    large = await client.request("POST", path, body, frugal)
    assert left(large, "requests") == 1
    assert 7000 < left(large, "tokens") < 9000
    refused = await client.request("POST", path, body | {"more": "y" * 80_000}, frugal)
    assert (refused.status, left(refused, "requests")) == (429, 1)
    code = refused.json()["error"].get("code", refused.json()["error"]["type"])
    assert code in ("rate_limit_exceeded", "rate_limit_error")
    assert len(engine.received) == 2
    free = await client.request("POST", path, body, [ring.bearer("alice")])
    assert free.header("x-ratelimit-limit-requests") is None
    assert (await client.get("/v1/models", frugal)).status == 200


async def test_request_that_no_engine_gets_takes_nothing_of_a_budget(
    keyed: Running, ring: KeyRing, engine: ScriptedEngine
) -> None:
    client, frugal = await keyed.client(), [ring.bearer("frugal")]
    port, keyed.pool.connections._port = keyed.pool.connections._port, 1
    for _ in range(4):
        failed = await client.post(headers=frugal)
        assert (failed.status, left(failed, "requests")) == (503, 2)
    keyed.pool.connections._port = port
    engine.scripts.append(rejects)
    rejected = await client.post(headers=frugal)
    assert (rejected.status, left(rejected, "requests")) == (400, 2)
    response = await client.post(headers=frugal)
    assert (response.status, left(response, "requests")) == (200, 1)
    assert left(response, "tokens") == left(rejected, "tokens"), "the engine generated nothing"


async def rejects(answer: Answer) -> None:
    answer.json({"error": {"message": "no", "type": "BadRequestError", "code": 400}}, 400)


@pytest.mark.parametrize("stream", [False, True])
async def test_requests_that_share_a_generation_each_take_what_it_generated(
    keyed: Running, ring: KeyRing, engine: ScriptedEngine, stream: bool
) -> None:
    client, frugal = await keyed.client(), [ring.bearer("frugal")]
    first = await client.post(headers=frugal, temperature=0, stream=stream)
    second = await client.post(headers=frugal, temperature=0, stream=stream)
    assert (first.status, second.status) == (200, 200)
    assert left(first, "tokens") - left(second, "tokens") < 100


async def test_capabilities_and_metrics_show_shares_by_name_and_no_secret(
    keyed: Running, ring: KeyRing, engine: ScriptedEngine
) -> None:
    client = await keyed.client()
    for name in ("heavy", "heavy", "frugal"):
        assert (await client.post(headers=[ring.bearer(name)])).status == 200
    response = await client.get("/v1/capabilities", [ring.bearer("frugal")])
    [entry] = response.json()["engines"]
    assert entry["shares"]["interactive"].keys() == {"frugal"}
    assert entry["shares"]["interactive"]["frugal"]["share"] == pytest.approx(1 / 3, abs=0.05)
    scraper = ring.bearer("prometheus")
    everybody = await client.get("/v1/capabilities", [scraper])
    shares = everybody.json()["engines"][0]["shares"]["interactive"]
    assert shares.keys() == {"heavy", "frugal"}
    assert (shares["heavy"]["weight"], shares["frugal"]["weight"]) == (3.0, 1.0)
    assert shares["heavy"]["share"] == pytest.approx(2 / 3, abs=0.05)
    assert shares["heavy"]["queued"] == shares["heavy"]["running"] == 0
    assert entry["rate_limits"]["key_requests_per_minute"] == 3
    assert entry["rate_limits"]["key_tokens_per_minute"] == 10_000
    metrics = await keyed.metrics(scraper)
    tokens = [
        next(v for k, v in metrics.items() if k.startswith("orch_key_tokens_total") and name in k)
        for name in ("heavy", "frugal")
    ]
    assert tokens[0] == pytest.approx(2 * tokens[1], rel=0.2)
    document = everybody.body.decode() + (await client.get("/metrics", [scraper])).body.decode()
    for key in ring.keys.values():
        assert key not in document
    assert "sha256" not in document


async def test_stream_that_is_cut_takes_what_it_had_generated(
    keyed: Running, ring: KeyRing, engine: ScriptedEngine
) -> None:
    """Of 256 tokens that it reserved for its output."""
    small = [ring.bearer("small")]
    engine.scripts.append(endless)
    leaves = await keyed.client()
    leaves.start(headers=small, stream=True, max_tokens=1000)
    await leaves.seen(b"data: more\n\n")
    await leaves.close()
    await keyed.idle()
    response = await (await keyed.client()).post(headers=small, max_tokens=1)
    assert left(response, "tokens") > 400
