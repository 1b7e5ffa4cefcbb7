"""What a client with an API key learns of other clients: nothing but sums.

A rival asks for everything that there is, and guesses prompts: which of them the engine takes for
the same follows from the salts of its cache.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from tests.integration.client import CHAT, COMPLETIONS, MESSAGES, RESPONSES, Client, Response
from tests.integration.held import Held, started
from tests.integration.keyed import Header, KeyRing
from tests.integration.live import Readers
from tests.integration.running import Running, Start, eventually
from tests.integration.scripted_engine import ScriptedEngine
from tests.integration.tiers import tier

TEAM = {"share_cache": "team"}
KEYS = {
    "victim": {},
    "rival": {},
    "red": TEAM,
    "blue": TEAM,
    "entry": {"sidecar": True},
    "prometheus": {"metrics": True},
}

PRIVATE = (
    "orch_key_tokens", "orch_key_queue_depth", "orch_key_running",
    "orch_engine_prefix_queries_tokens", "orch_engine_prefix_hits_tokens",
    "orch_prefix_placements",
)  # fmt: skip
COUNTS = {"queries_total": 64, "hits_total": 32}


@pytest.fixture
async def keyed(start: Start, ring: KeyRing, engine: ScriptedEngine) -> Running:
    engine.report(prefix_cache=COUNTS)
    running = await start(api_keys_file=ring.path)
    await eventually(lambda: "prefix_cache" in (running.pool.watcher.document or {}))
    return running


async def asked(running: Running, path: str, *headers: Header, operator: bool = False) -> Response:
    port = running.sidecar.admin_port if operator else running.port
    client = await Client.connect(port)
    running.clients.append(client)
    return await client.get(path, headers)


def families(response: Response) -> set[str]:
    assert response.status == 200
    lines = response.body.decode().splitlines()
    return {line.split()[2].removesuffix("_total") for line in lines if line.startswith("# TYPE")}


async def test_rival_sees_the_rows_of_no_other_key_in_the_live_document(
    keyed: Running, ring: KeyRing, held: Held, readers: Readers
) -> None:
    rival = await readers.open(keyed, headers=dict([ring.bearer("rival")]))
    scraper = await readers.open(keyed, headers=dict([ring.bearer("prometheus")]))
    operator = await readers.open(keyed, operator=True)
    for each in (rival, scraper, operator):
        await each.next()
    theirs = [await started(keyed, headers=[ring.bearer("victim")], seed=n) for n in range(6)]
    await eventually(lambda: keyed.queued == 2)
    mine = await started(keyed, headers=[ring.bearer("rival")], seed=10)
    seen = await operator.until(lambda it: len(it["pools"][0]["queue"]) == 3)
    assert {row["key"] for row in seen["pools"][0]["queue"]} == {"victim", "rival"}
    found = await rival.until(lambda it: it["pools"][0]["queue"])
    [pool] = found["pools"]
    assert [row["key"] for row in pool["queue"]] == ["rival"]
    assert (pool["admitted"], pool["queued"]["interactive"]) == ([], 3), "a sum says no name"
    assert {row["key"] for row in pool["keys"]} == {"rival"}
    held.release_all()
    await eventually(lambda: len(held.waiting) == 3)
    held.release_all()
    for client in (*theirs, mine):
        assert (await client.response()).status == 200
    seen = await operator.until(lambda it: len(it["requests"]) == 7)
    found = await rival.until(lambda it: it["requests"])
    assert [row["key"] for row in found["requests"].values()] == ["rival"]
    late = await readers.open(keyed, headers=dict([ring.bearer("rival")]))
    assert len((await late.next())["requests"]) == 1
    ids = {row["id"][:8] for row in seen["requests"].values() if row["key"] == "victim"}
    await scraper.until(lambda it: not it["pools"][0]["slots"]["interactive"])
    for each in (rival, late, scraper):
        text = str(each.document)
        assert "victim" not in text
        assert not any(each in text for each in ids)


async def test_live_document_of_a_key_is_not_that_of_the_one_that_gets_its_name(
    keyed: Running, ring: KeyRing, readers: Readers
) -> None:
    victim, rival = (dict([ring.bearer(name)]) for name in ("victim", "rival"))
    old = await readers.open(keyed, headers=rival)
    await old.next()
    for name in ("victim", "rival"):
        ring.remove(name)
    ring.keys |= {"victim": ring.keys["rival"], "rival": ring.keys["victim"]}
    for name in ("victim", "rival"):
        ring.add(name)
    await keyed.sidecar.reloader.reload_keys()
    new = await readers.open(keyed, headers=rival)
    with pytest.raises(ConnectionError):
        await old.until(lambda _: False)
    client = await keyed.client()
    for headers in (victim, rival):
        assert (await client.post(headers=headers.items())).status == 200
    found = await new.until(lambda it: it["requests"])
    assert {row["key"] for row in found["requests"].values()} == {"victim"}


async def test_rival_sees_the_name_and_the_share_of_no_other_key_in_the_capabilities(
    keyed: Running, ring: KeyRing
) -> None:
    client = await keyed.client()
    for name in ("victim", "rival", "victim"):
        assert (await client.post(headers=[ring.bearer(name)])).status == 200

    def entry(response: Response) -> dict[str, Any]:
        found: dict[str, Any] = response.json()["engines"][0]
        return found

    path = "/v1/capabilities"
    own = entry(await asked(keyed, path, ring.bearer("rival")))
    assert own["shares"]["interactive"].keys() == {"rival"}
    assert "victim" not in str(own)
    assert "prefix_cache" not in own
    for found in (
        entry(await asked(keyed, path, ring.bearer("prometheus"))),
        entry(await asked(keyed, path, operator=True)),
    ):
        assert found["shares"]["interactive"].keys() == {"victim", "rival"}
        assert found["prefix_cache"] == COUNTS


async def test_state_stream_tells_sidecars_alone_of_the_prefix_cache(
    keyed: Running, ring: KeyRing
) -> None:
    for name, told in (("rival", False), ("entry", True), ("prometheus", True)):
        client = await keyed.client()
        client.send_request("GET", "/v1/capabilities/stream", None, [ring.bearer(name)])
        state = await client.seen(b"event: state\n")
        state = await client.seen(b"}\n\n")
        assert (b"prefix_cache" in state) is told, name
        assert b"slots_total" in state


async def test_entry_above_knows_the_prefix_cache_of_the_engine(
    keyed: Running, ring: KeyRing, start: Start
) -> None:
    entry = await start(pools=[tier(keyed, api_key=ring.keys["entry"])])
    assert (await entry.capabilities())["prefix_cache"] == COUNTS
    assert families(await asked(entry, "/metrics")).issuperset(PRIVATE), "it has no keys"


async def test_metrics_without_a_key_lack_what_tells_of_single_clients(
    keyed: Running, ring: KeyRing, start: Start
) -> None:
    everything = families(await asked(await start(), "/metrics")) | {"orch_api_keys_error"}
    assert everything.issuperset(PRIVATE), "without keys nothing is kept back"
    for headers in ([], [ring.bearer("rival")], [ring.x_api_key("victim")]):
        assert families(await asked(keyed, "/metrics", *headers)) == everything - {*PRIVATE}
    assert families(await asked(keyed, "/metrics", ring.bearer("prometheus"))) == everything
    assert families(await asked(keyed, "/metrics", operator=True)) == everything
    for header in (("Authorization", "Bearer guessed"), ("Authorization", "Basic eDp5")):
        assert (await asked(keyed, "/metrics", header)).status == 401
        for path in ("/livez", "/readyz", "/metrics/model-server"):
            assert (await asked(keyed, path, header)).status == 200


async def salt_of(
    running: Running, engine: ScriptedEngine, *headers: Header, path: str = CHAT, **body: Any
) -> str | None:
    """The salt with which a request reaches the engine."""
    client = await running.client()
    assert (await client.post(path, headers, **body)).status == 200
    document = engine.generating[-1].json()
    found: str | None = document.get("cache_salt")
    assert engine.generating[-1].body.count(b"cache_salt") == (found is not None)
    return found


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES, MESSAGES])
async def test_each_key_has_a_salt_of_its_own_and_a_group_one_together(
    keyed: Running, ring: KeyRing, engine: ScriptedEngine, path: str
) -> None:
    salts = {
        name: await salt_of(keyed, engine, ring.bearer(name), path=path)
        for name in ("victim", "rival", "red", "blue")
    }
    assert all(salts.values())
    assert salts["red"] == salts["blue"]
    assert len({*salts.values()}) == 3
    # A rival who sends the victim's salt, which he cannot know, does not get it.
    for guess in (salts["victim"], "victim", "", None):
        own = await salt_of(keyed, engine, ring.bearer("rival"), path=path, cache_salt=guess)
        assert own != salts["victim"]
        assert (own == salts["rival"]) is (guess is None)


async def test_sidecars_with_the_same_secret_have_the_same_salts(
    start: Start, ring: KeyRing, engine: ScriptedEngine, tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    secret = tmp_path / "secret"
    secret.write_text("\n" + "0" * 32 + "\n")
    header = ring.bearer("victim")

    async def salt(**settings: Any) -> str | None:
        return await salt_of(await start(api_keys_file=ring.path, **settings), engine, header)

    with caplog.at_level(logging.INFO):
        same = {await salt(cache_salt_file=secret) for _ in range(2)}
        assert "cache_salt_file" not in caplog.text
        random = {await salt() for _ in range(2)}
    assert [len(same), len(random), len(same | random)] == [1, 2, 3]
    assert sum("cache_salt_file is not set" in each for each in caplog.messages) == 2
    for text, problem in (
        ("0" * 31 + " \n", "has 31 bytes, but must have at least 32"),
        (None, "No such file"),
    ):
        secret.unlink()
        if text is not None:
            secret.write_text(text)
        with pytest.raises(ValueError, match=problem) as caught:
            await start(cache_salt_file=secret)
        assert str(secret) in str(caught.value)
        secret.touch()


async def test_without_keys_every_body_reaches_the_engine_as_it_is(
    sidecar: Running, engine: ScriptedEngine
) -> None:
    body = b'{"messages": [{"role":"user","content":"x"}], "cache\\u005fsalt" : "mine"}'
    for each in (body, b'{"messages":[]}', b"\n" + body):
        client = await sidecar.client()
        assert (await client.request("POST", CHAT, each)).status == 200
        assert engine.generating[-1].body == each


async def test_of_two_tiers_the_one_that_knows_the_clients_salts(
    keyed: Running, ring: KeyRing, engine: ScriptedEngine, start: Start
) -> None:
    below = tier(keyed, api_key=ring.keys["entry"])
    entry = await start(pools=[below], api_keys_file=ring.path)
    direct = await salt_of(keyed, engine, ring.bearer("victim"))
    through = await salt_of(entry, engine, ring.bearer("victim"))
    again = await salt_of(entry, engine, ring.bearer("victim"))
    assert through == again != direct
    assert await salt_of(entry, engine, ring.bearer("rival")) != through
    # What a sidecar sends keeps the salt it has, or none.
    parent = ring.bearer("entry")
    assert await salt_of(keyed, engine, parent) is None
    assert await salt_of(keyed, engine, parent, cache_salt=through) == through
