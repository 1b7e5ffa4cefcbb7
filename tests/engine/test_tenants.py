"""Keys and the prefix cache of a real engine: who finds what another one asked before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from orch_sidecar.tools.local.stack import Stack
from tests.engine.clients import PATHS, body, post, session, until
from tests.engine.sidecars import sidecar
from tests.integration.keyed import KeyRing

# The CPU build caches blocks of 128 tokens.
QUESTION = "the salary of the chancellor is a secret of the state " * 20


@pytest.fixture
def ring(tmp_path: Path) -> KeyRing:
    ring = KeyRing(tmp_path)
    for name, group in (("victim", None), ("rival", None), ("red", "team"), ("blue", "team")):
        ring.add(name, share_cache=group)
    ring.add("prometheus", metrics=True)
    return ring


@pytest.fixture
def keyed(
    home: Stack, ring: KeyRing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """The URL of a sidecar whose clients have keys, at the engine of `home`."""
    monkeypatch.setenv("ORCH_API_KEYS_FILE", str(ring.path))
    pool = {"name": "home", "url": home.engine_url, "profile": "home"}
    with sidecar(tmp_path / "keyed.log", pool) as url:
        yield url


class Cache:
    """The engine's counts of its prefix cache, in tokens."""

    def __init__(self, http: aiohttp.ClientSession, url: str, ring: KeyRing) -> None:
        self._http, self._page = http, f"{url}/metrics/engine"
        self._header = dict([ring.bearer("prometheus")])

    async def count(self, name: str) -> int:
        async with self._http.get(self._page, headers=self._header) as response:
            assert response.status == 200
            text = await response.text()
        metric = f"vllm:prefix_cache_{name}_total{{"
        [line] = [each for each in text.splitlines() if each.startswith(metric)]
        return int(float(line.rpartition(" ")[2]))

    async def looked_up_since(self, queries: int) -> bool:
        return await self.count("queries") > queries


async def test_prompt_of_another_key_is_not_found_in_the_prefix_cache(
    keyed: str, ring: KeyRing
) -> None:
    async with session() as http:
        await until(lambda: ready(http, keyed))
        cache = Cache(http, keyed, ring)

        async def hits(name: str, api: str, **more: str) -> int:
            """What the engine found of the prompt when this client sent it."""
            question = f"{api}: {QUESTION}"
            messages = [{"role": "user", "content": question}]
            prompt = {"completions": {"prompt": question}, "responses": {"input": question}}
            queries, before = await cache.count("queries"), await cache.count("hits")
            asked = prompt.get(api, {"messages": messages})
            document = body(api, 1, stream=False) | asked | more
            seen = await post(http, keyed, api, document, dict([ring.bearer(name)]))
            assert seen.status == 200, seen.data
            await until(lambda: cache.looked_up_since(queries))
            return await cache.count("hits") - before

        for api in PATHS:
            assert await hits("victim", api) == 0
            assert await hits("rival", api) == 0, "a rival who guesses the prompt learns nothing"
            assert await hits("rival", api, cache_salt="victim") == 0
            own = await hits("victim", api)
            assert own > 0
            assert await hits("red", api) == 0
            assert await hits("blue", api) == own, "it shares on purpose"


async def ready(http: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with http.get(f"{url}/readyz") as response:
            return response.status == 200
    except aiohttp.ClientError:
        return False
