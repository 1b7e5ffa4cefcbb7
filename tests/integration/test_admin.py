"""The operators' listener: draining a pool, having it take requests again, and its health."""

from __future__ import annotations

import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from tests.integration.client import CHAT, Client, Response
from tests.integration.held import Held, started
from tests.integration.running import Running, Start, all_ready, eventually, pools
from tests.integration.scripted_engine import ScriptedEngine

Admin = Callable[..., Awaitable[Response]]


@pytest.fixture
async def admin() -> AsyncIterator[Admin]:
    """Asks the operators' listener of a sidecar."""
    clients: list[Client] = []

    async def ask(
        running: Running, method: str, path: str, headers: list[tuple[str, str]] | None = None
    ) -> Response:
        client = await Client.connect(running.sidecar.admin_port)
        clients.append(client)
        return await client.request(method, path, None, headers or [])

    yield ask
    for client in clients:
        await client.close()


async def health(running: Running, pool: str = "cloud") -> Response:
    return await (await running.client()).get(f"/v1/pools/{pool}/health")


async def test_drained_pool_finishes_what_it_has_and_takes_nothing_until_it_is_resumed(
    sidecar: Running, engine: ScriptedEngine, held: Held, admin: Admin
) -> None:
    busy = await started(sidecar, n=4)
    await eventually(lambda: held.waiting)
    queued = await started(sidecar, seed=1)
    await eventually(lambda: sidecar.queued)
    for _ in range(2):  # it may be repeated
        drained = await admin(sidecar, "POST", "/v1/pools/cloud/drain")
        assert (drained.status, drained.json()["draining"]) == (200, True)
    refused = await (await sidecar.client()).post()
    assert (refused.status, refused.error["code"]) == (503, "draining")
    assert refused.header("retry-after") == "1"
    client = await sidecar.client()
    ready = await client.get("/readyz")
    assert (ready.status, ready.json()["state"], ready.json()["draining"]) == (
        503,
        "draining",
        True,
    )
    assert (await client.get("/health")).status == 200, "an operator's drain kills no pod"
    held.release()
    assert (await busy.response()).status == 200
    await eventually(lambda: held.waiting)
    held.release()
    assert (await queued.response()).status == 200
    resumed = await admin(sidecar, "POST", "/v1/pools/cloud/resume")
    assert (resumed.status, resumed.json()["draining"]) == (200, False)
    assert (await client.get("/readyz")).status == 200
    engine.answer = Held()
    again = await started(sidecar)
    await eventually(lambda: engine.answer.waiting)  # type: ignore[attr-defined]
    engine.answer.release()
    assert (await again.response()).status == 200


async def test_new_requests_go_to_the_pools_that_are_left(
    start: Start, engine: ScriptedEngine, b: ScriptedEngine, admin: Admin
) -> None:
    running = await all_ready(await start(**pools(a=engine, b=b)))
    client = await running.client()
    await admin(running, "POST", "/v1/pools/a/drain")
    for seed in range(4):
        assert (await client.post(seed=seed)).status == 200
    assert (len(engine.generating), len(b.generating)) == (0, 4)
    assert (await client.get("/readyz")).json()["pools"] == {"a": "draining", "b": "ready"}
    only = await client.post(CHAT, [("X-Orch-Pool", "a")])
    assert only.status == 503
    client = await running.client()
    await admin(running, "POST", "/v1/pools/b/drain")
    both = await client.post()
    assert (both.status, both.error["code"]) == (503, "draining")
    await admin(running, "POST", "/v1/pools/a/resume")
    client = await running.client()
    assert (await client.post()).status == 200
    assert (await client.post(CHAT, [("X-Orch-Pool", "a")])).status == 200
    assert len(engine.generating) == 2


async def test_health_is_that_of_one_pool(
    sidecar: Running, engine: ScriptedEngine, held: Held, admin: Admin
) -> None:
    busy = await started(sidecar, n=3)
    await eventually(lambda: held.waiting)
    response = await health(sidecar)
    assert response.status == 200
    assert response.header("x-measurement-type") == "batched_online"
    document = response.json()
    numbers, batching = document.pop("metrics"), document.pop("batching")
    assert document == {
        "pool": "cloud",
        "live": True,
        "ready": True,
        "draining": False,
        "drain": None,
        "state": "ready",
        "engine_epoch": "epoch-1",
        "last_error": None,
        "generation": 1,
        "last_reload_error": None,
        "needs_restart": [],
    }
    assert numbers["slots_total"] == 4
    assert numbers["slots_leased"] == 3
    assert numbers["queue_depth"] == {"interactive": 0, "bulk": 0, "idle": 0}
    assert numbers["oversubscription_violations_total"] == 0
    assert list(batching) == [
        "total_batches", "total_requests", "avg_batch_size", "avg_batch_duration_ms",
        "queue_depth", "max_batch_size", "max_wait_ms",
    ]  # fmt: skip
    assert (batching["total_requests"], batching["queue_depth"]) == (1, 0)
    same = (await admin(sidecar, "GET", "/v1/pools/cloud/health")).json()
    assert same.pop("batching") == batching
    assert same | {"metrics": None} == document | {"metrics": None}
    held.release()
    await busy.response()
    await engine.stop()
    await eventually(lambda: not sidecar.pool.watcher.ready)
    response = await health(sidecar)
    assert response.status == 503
    assert (response.json()["live"], response.json()["ready"]) == (False, False)
    assert "the engine" in response.json()["last_error"]
    unknown = await health(sidecar, "nowhere")
    assert (unknown.status, unknown.error["code"]) == (404, "not_found")
    await engine.start()


async def test_operators_read_the_pages_and_reach_no_engine(
    sidecar: Running, engine: ScriptedEngine, admin: Admin
) -> None:
    for path in ("/v1/capabilities", "/metrics", "/livez", "/readyz", "/healthz", "/ui"):
        for method in ("GET", "HEAD"):
            assert (await admin(sidecar, method, path)).status == 200
        wrong = await admin(sidecar, "POST", path)
        assert (wrong.status, wrong.header("allow")) == (405, "GET, HEAD")
    wrong = await admin(sidecar, "GET", "/v1/pools/cloud/drain")
    assert (wrong.status, wrong.header("allow")) == (405, "POST")
    for method, path in (
        ("POST", CHAT),
        ("GET", "/v1/models"),
        ("GET", "/v1/capabilities/stream"),
        ("POST", f"/v1/requests/{'0' * 32}/cancel"),
        ("POST", "/v1/pools/nowhere/drain"),
        ("POST", "/v1/pools//drain"),
    ):
        response = await admin(sidecar, method, path)
        assert (response.status, response.error["code"]) == (404, "not_found")
        assert response.header("server") == "orch-sidecar"
    assert engine.received == []
    client = await Client.connect(sidecar.sidecar.admin_port)
    client.send(b"nonsense\r\n\r\n")
    assert (await client.response()).error["code"] == "invalid_request"
    await client.close()


async def test_listener_is_on_the_loopback_and_a_thousand_above_the_other(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1] % 20_000 + 20_000
    running = await start(port=port)
    assert running.sidecar.admin_port == port + 1000
    assert running.sidecar.admin._listener is not None
    [own] = running.sidecar.admin._listener.sockets
    assert own.getsockname()[0] == "127.0.0.1"


async def test_port_that_is_taken_is_replaced_by_default_and_refused_if_it_was_asked_for(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with caplog.at_level(logging.WARNING):
            running = await start(port=port - 1000)
        assert running.sidecar.admin_port not in (0, port)
        [line] = [each for each in caplog.messages if "admin_port" in each]
        assert str(port) in line
        with pytest.raises(OSError, match=f"127.0.0.1:{port} .*admin_port"):
            await start(port=0, admin_port=port)
    running = await start(admin_port=0)
    assert running.sidecar.admin_port


OWN_PAGE = {"Content-Type": "application/json", "X-Orch-Operator": "true"}


async def test_page_of_this_listener_may_drain_and_resume(sidecar: Running) -> None:
    """As a browser sends it from /ui, under any name of the loopback; without one of these fields
    any other page could send it, too."""
    for host in ("localhost", "127.0.0.1", "[::1]"):
        authority = f"{host}:{sidecar.sidecar.admin_port}"
        own = {"Host": authority, "Origin": f"http://{authority}", **OWN_PAGE}
        for what, drains in (("drain", True), ("resume", False)):
            path = f"/v1/pools/cloud/{what}"
            for missing in OWN_PAGE:
                fields = {name: value for name, value in own.items() if name != missing}
                refused = await raw(sidecar, "POST", path, fields, b"{}")
                assert (refused.status, refused.error["code"]) == (403, "forbidden")
            assert (await raw(sidecar, "POST", path, own, b"")).status == 403
            assert bool(sidecar.pool.admission.draining) is not drains
            assert (await raw(sidecar, "POST", path, own, b"{}")).status == 200
            assert bool(sidecar.pool.admission.draining) is drains


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("127.0.0.1:{port}", "http://evil.example"),
        # Its own origin, by a name that was made to resolve to the loopback.
        ("evil.example:{port}", "http://evil.example:{port}"),
    ],
)
async def test_no_other_page_may_whatever_else_it_sends(
    sidecar: Running, host: str, origin: str
) -> None:
    port = sidecar.sidecar.admin_port
    fields = {"Host": host.format(port=port), "Origin": origin.format(port=port), **OWN_PAGE}
    for path in ("/v1/pools/cloud/drain", "/v1/pools/cloud/resume", "/v1/live", "/ui"):
        method = "POST" if "pools" in path else "GET"
        refused = await raw(sidecar, method, path, fields, b"{}" if method == "POST" else b"")
        assert (refused.status, refused.error["code"]) == (403, "forbidden")
    assert not sidecar.pool.admission.draining


async def raw(
    running: Running, method: str, path: str, fields: dict[str, str], body: bytes
) -> Response:
    """A request to the operators' listener with these fields and no others."""
    client = await Client.connect(running.sidecar.admin_port)
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    lines.append(f"Content-Length: {len(body)}")
    client.send("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
    response = await client.response(method)
    await client.close()
    return response
