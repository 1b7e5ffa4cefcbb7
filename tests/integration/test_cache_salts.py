"""Which prompts of clients with API keys the engine takes for the same: the salts of its cache."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from tests.integration.client import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from tests.integration.keyed import Header, KeyRing
from tests.integration.running import Running, Start
from tests.integration.scripted_engine import ScriptedEngine
from tests.integration.tiers import tier


@pytest.fixture
def ring(tmp_path: Path) -> KeyRing:
    ring = KeyRing(tmp_path)
    ring.add("victim")
    ring.add("rival")
    ring.add("red", share_cache="team")
    ring.add("blue", share_cache="team")
    ring.add("entry", sidecar=True)
    return ring


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
