"""Ids identify one request of the same key, running or ended."""

from __future__ import annotations

from tests.integration.cancelling import assert_cancelled, cancel, named, new_id
from tests.integration.held import Held, started
from tests.integration.running import Running, eventually
from tests.integration.scripted_engine import ScriptedEngine

KEY = ("Authorization", "Bearer sk-one")


async def test_request_of_another_key_does_not_exist(
    sidecar: Running, engine: ScriptedEngine, held: Held
) -> None:
    request_id = new_id()
    client = await started(sidecar, headers=[named(request_id), KEY])
    await eventually(lambda: held.waiting)
    for headers in ([], [("Authorization", "Bearer sk-two")], [("X-Api-Key", "sk-two")]):
        refused = await cancel(sidecar, request_id, *headers)
        assert (refused.status, refused.error["code"]) == (404, "not_found")
    unknown = await cancel(sidecar, new_id(), KEY)
    assert unknown.status == 404
    assert len(held.waiting) == 1
    assert (await cancel(sidecar, request_id, ("X-Api-Key", "sk-one"))).status == 204
    assert_cancelled(await client.response())
    assert (await cancel(sidecar, request_id)).status == 404, "ended, and still of that key"
    assert (await cancel(sidecar, request_id, KEY)).status == 204


async def test_id_chosen_by_a_client_is_used_if_valid_and_unique(
    sidecar: Running, engine: ScriptedEngine, held: Held
) -> None:
    request_id = new_id()
    client = await started(sidecar, headers=[named(request_id)])
    await eventually(lambda: held.waiting)
    other = await sidecar.client()
    for given in (request_id, "mine", request_id.upper() + "A", "", request_id + "0"):
        refused = await other.post(headers=[named(given)])
        assert (refused.status, refused.error["param"]) == (400, "X-Orch-Request-Id")
        assert refused.header("x-orch-request-id") not in (given, None)
    held.release()
    response = await client.response()
    assert response.header("x-orch-request-id") == request_id
    assert engine.generating[0].header("x-orch-request-id") is None
    assert len(engine.generating) == 1
