"""Every answer, every span and every metric of requests has a measurement type of a closed set,
whatever becomes of the request."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from orch_sidecar.api.endpoints import ENDPOINTS, LIVE, STREAM, ResourcePath
from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.proxy.frontend import Frontend
from orch_sidecar.proxy.request import NotSent, Request
from orch_sidecar.wire.forwarding import HeaderNames
from tests.integration import answers as scripted
from tests.integration.client import CHAT, Client, Response, body_of
from tests.integration.keyed import KeyRing
from tests.integration.otlp import Collect
from tests.integration.running import Running, Start, all_ready, eventually, pools, total
from tests.integration.scripted_answers import AnswerScript, nth_answer, start_request, together
from tests.integration.scripted_engine import Engine, ScriptedEngine

CLOUD, HOME, NONE = "batched_online", "single_stream", "none"
ROUTE_PATHS = [path for path in ENDPOINTS if path not in (LIVE, STREAM)]
# Counters and histograms that count something else; a new one of requests is not to be added.
OTHERS = {
    "orch_batching_batches", "orch_connections_closed", "orch_decode_batch_size",
    "orch_decode_seconds", "orch_engine_busy_seconds", "orch_engine_generated_tokens",
    "orch_engine_preemptions", "orch_engine_prefix_hits_tokens",
    "orch_engine_prefix_queries_tokens", "orch_engine_prompt_tokens", "orch_leases_orphaned",
    "orch_oversubscription_violations", "orch_request_log_dropped", "orch_spans_dropped",
    "orch_spans_exported", "process_cpu_seconds",
}  # fmt: skip
# Gauges of requests; all others are of slots, engines and the process.
GAUGES = {
    "orch_queue_depth", "orch_batching_queue_depth", "orch_key_queue_depth", "orch_key_running",
}  # fmt: skip
NAMED_PATHS = [
    each.format(name=name, model=name) for each in ResourcePath for name in ("home", "nobody")
]


@pytest.fixture
async def mixed(start: Start, engine: ScriptedEngine, another: Engine) -> Running:
    """Pools `cloud` and `home`, which takes only what asks for it."""
    home = await another(slots=1, profile="home")
    settings = pools(cloud=engine, home=home)
    settings["pools"][1]["on_request"] = True
    return await all_ready(await start(**settings, max_body_bytes=4096, max_header_bytes=4096))


def traced(*fields: tuple[str, str]) -> list[tuple[str, str]]:
    return [("traceparent", f"00-{secrets.token_hex(16)}-{'a' * 16}-01"), *fields]


def type_of(response: Response) -> str | None:
    return response.header("x-measurement-type")


async def test_every_answer_and_every_span_has_a_type_where_pools_differ(
    collect: Collect, mixed: Running
) -> None:
    answers: dict[str, Response] = {}  # by their traces

    async def ask(
        method: str, path: str, *fields: tuple[str, str], body: bytes | None = None
    ) -> Response:
        given = traced(*fields)
        client = await mixed.client()
        answer = await client.request(method, path, body, given)
        await client.close()
        answers[given[0][1].split("-")[1]] = answer
        return answer

    big = b"x" * 5000
    for path in [*ROUTE_PATHS, STREAM, *NAMED_PATHS, "/nowhere", "/"]:
        for method in ("GET", "POST", "DELETE"):
            await ask(method, path, body=b"{" if method == "POST" else None)
    for path in ROUTE_PATHS:
        if ENDPOINTS[path].method == "POST":
            await ask("POST", path, body=big)  # 413
            await ask("POST", path, ("Content-Encoding", "br"), body=b"{}")
            await ask("POST", path, ("X-Orch-Class", "nonsense"), body=b"{}")
            await ask("POST", path, ("X-Orch-Pool", "nobody"), body=b"{}")
    for pool in ("cloud", "home"):
        for path in (CHAT, "/tokenize", "/v1/models", "/version", "/metrics/engine"):
            method = ENDPOINTS[path].method
            document = str(body_of(CHAT)).replace("'", '"').replace("False", "false").encode()
            body = document if method == "POST" else None
            answer = await ask(method, path, ("X-Orch-Pool", pool), body=body)
            assert answer.status == 200
    statuses = {answer.status for answer in answers.values()}
    assert {200, 204, 400, 404, 405, 413, 415} >= statuses >= {200, 400, 404, 405, 413, 415}
    types = {type_of(answer) for answer in answers.values()}
    assert types == {CLOUD, HOME, NONE}
    found = await collect(mixed)
    for span in found.spans:
        label = span.attributes["measurement_type"]
        assert label == type_of(answers[span.trace_id]), f"{span.name}: as its answer"
        assert (label == NONE) is ("orch.pool" not in span.attributes)
        assert "measurement_type" not in span.resource, "the pools do not agree"
    assert {span.attributes["measurement_type"] for span in found.spans} == {CLOUD, HOME, NONE}


async def labels_of_requests(running: Running, *key: tuple[str, str]) -> dict[str, set[str]]:
    """The families of requests, with the types of their samples; fails where one has none."""
    client = await running.client()
    text = (await client.request("GET", "/metrics", headers=key)).body.decode()
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        if family.name in OTHERS or (family.type == "gauge" and family.name not in GAUGES):
            continue
        found[family.name] = set()
        for sample in family.samples:
            kind, pool = sample.labels.get("measurement_type"), sample.labels.get("pool")
            expected = {"cloud": CLOUD, "home": HOME, "none": NONE}
            assert kind is not None, f"{sample.name}{sample.labels}"
            assert kind == expected[str(pool)], f"{sample.name}{sample.labels}"
            found[family.name].add(str(kind))
    return found


async def test_every_metric_and_every_span_of_requests_has_a_type(
    collect: Collect,
    start: Start,
    engine: ScriptedEngine,
    another: Engine,
    script: AnswerScript,
    tmp_path: Path,
) -> None:
    """Requests of each kind: served, refused, cancelled, shared, tokenized; without a key, a path,
    a class, a pool; and what only operators ask for."""
    home = await another(slots=1, profile="home")
    keys = KeyRing(tmp_path)
    keys.add("alice", metrics=True)
    settings = pools(cloud=engine, home=home) | {"api_keys_file": keys.path}
    settings["pools"][1]["on_request"] = True
    log = str(tmp_path / "requests.jsonl")
    running = await all_ready(await start(**settings, queue_capacity=0, request_log=log))
    alice = keys.bearer("alice")
    sharing = await together(running, (alice,), (alice,))
    cancelled = await start_request(running, alice, seed=2)
    await nth_answer(script, 2)
    cancelled.reset()
    await eventually(lambda: running.sidecar.pools["cloud"].ledger.lease_count == 1)
    (await nth_answer(script)).send_all("one ")
    assert [(await client.response()).status for client in sharing] == [200, 200]
    engine.answer = scripted.answer
    client = await running.client()
    statuses = [
        (await client.post(CHAT, [alice, *fields], **body)).status
        for fields, body in (
            ([("X-Orch-Pool", "home")], {"stream": True}),
            ([("X-Orch-Pool", "home")], {"n": 2}),
            ([("X-Orch-Pool", "nobody")], {}),
            ([("X-Orch-Class", "nonsense")], {}),
            ([], {"n": 5}),
            ([], {"n": 0}),
        )
    ]
    assert statuses == [200, 400, 400, 400, 400, 400]
    assert (await client.post(CHAT)).status == 401
    assert (await client.post("/tokenize", [alice])).status == 200
    assert (await client.request("GET", "/nowhere", headers=[alice])).status == 404
    assert (await client.request("GET", STREAM)).status == 401
    operator = await Client.connect(running.sidecar.admin_port)
    running.clients.append(operator)
    for path in ("/livez", "/v1/capabilities", "/v1/pools/cloud/health"):
        assert (await operator.get(path)).status == 200
    found = await labels_of_requests(running, alice)
    assert found["orch_requests"] == {CLOUD, HOME, NONE}
    samples = {name for name, types in found.items() if types}
    assert samples >= GAUGES | {"orch_coalesced", "orch_admissions", "orch_key_tokens"}
    assert {name for name, types in found.items() if types == {CLOUD, HOME}} >= samples - {
        "orch_requests",
        "gen_ai_server_time_per_output_token_seconds",
    }, "each pool has all of them"
    spans = (await collect(running)).spans
    assert {span.attributes["measurement_type"] for span in spans} == {CLOUD, HOME, NONE}


async def test_requests_of_an_address_that_is_gone_are_counted(
    start: Start, engine: ScriptedEngine
) -> None:
    running = await start()
    client = await running.client()
    await client.post(CHAT)
    running.sidecar.pools.remove_address(running.pool, "it is gone")
    metrics = await running.metrics()
    assert total(metrics, "orch_requests_total", pool="cloud", measurement_type=CLOUD) == 1


async def test_pages_have_the_type_of_the_pool_that_they_are_about(mixed: Running) -> None:
    clients = {False: await mixed.client(), True: await Client.connect(mixed.sidecar.admin_port)}
    mixed.clients.append(clients[True])
    for admin, path, expected in (
        (False, "/v1/pools/home/health", HOME),
        (False, "/v1/pools/cloud/health", CLOUD),
        (True, "/v1/pools/home/health", HOME),
        (True, "/livez", NONE),
        (True, "/metrics", NONE),
        (True, "/v1/pools/nobody/health", NONE),
        (True, "/nowhere", NONE),
        (False, "/readyz", NONE),
        (False, "/v1/capabilities", NONE),
    ):
        assert (path, type_of(await clients[admin].get(path))) == (path, expected)
    for path in ("drain", "resume"):
        answer = await clients[True].request("POST", f"/v1/pools/home/{path}")
        assert (answer.status, type_of(answer)) == (200, HOME)
    reader = await mixed.client()
    reader.send_request("GET", f"{STREAM}?pool=home")
    head = await reader.seen(b"\r\n\r\n")
    assert b"\r\nx-measurement-type: single_stream\r\n" in head.lower()


@pytest.mark.parametrize("placed", [None, "home"])
async def test_refusal_for_any_reason_has_a_type(
    mixed: Running, monkeypatch: pytest.MonkeyPatch, placed: str | None
) -> None:
    reasons = list(Reason)

    async def refuse(self: Frontend, request: Request, names: HeaderNames) -> NotSent:
        if placed is not None:
            request.record.labels = mixed.sidecar.pools[placed].labels
        return NotSent(Refusal(reasons[-1], "no"))

    monkeypatch.setattr(Frontend, "_serve", refuse)
    while reasons:
        client = await mixed.client()
        answer = await client.post()
        assert answer.error["message"] == "no"
        assert type_of(answer) == (HOME if placed else NONE), reasons[-1]
        reasons.pop()
