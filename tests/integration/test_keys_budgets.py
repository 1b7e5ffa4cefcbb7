"""Budgets and shares of keys, as their clients see them."""

from __future__ import annotations

import pytest

from tests.integration.client import MESSAGES, Response
from tests.integration.keyed import KeyRing
from tests.integration.running import Running
from tests.integration.scripted_engine import ScriptedEngine
from tests.integration.scripts import endless
from tests.integration.wire import Answer

KEYS = {
    "free": {},
    "heavy": {"weight": 3},
    "frugal": {"tokens_per_minute": 10_000, "requests_per_minute": 3},
    "poor": {"tokens_per_minute": 60},
    "small": {"tokens_per_minute": 600},
    "prometheus": {"metrics": True},
}


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
    free = await client.post(headers=[ring.bearer("free")], stream=stream)
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
    assert (await client.post(headers=[ring.bearer("free")])).status == 200


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
    free = await client.request("POST", path, body, [ring.bearer("free")])
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
