"""Which sidecars a real engine serves, and that nobody else keeps their clients waiting."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from orch_sidecar.tools.local.stack import Stack
from tests.engine.clients import body, post, session, until
from tests.engine.conftest import SLOTS
from tests.engine.sidecars import sidecar
from vllm_plugin.contracts.lease_protocol import CLAIMS_PATH

# The engine of `sliding` is a start of its own. Keys of sidecars are in
# tests/integration/test_sidecar_keys.py, and one of a real engine in test_up.
pytestmark = pytest.mark.long

CLAIM = {"cost": SLOTS, "urgent": True, "more": SLOTS}


@pytest.fixture
def address() -> str:
    """An address of this machine that is not of the loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
            found: str = probe.getsockname()[0]
        except OSError:
            found = "127.0.0.1"
    if found.startswith("127."):
        pytest.skip("this machine has no address but the loopback's")
    return found


def texts_of(logs: Path) -> list[str]:
    return [log.read_text(errors="replace") for log in logs.rglob("*.log")]


async def test_engine_at_another_address_serves_sidecars_that_send_its_key(
    sliding: Stack, sidecar_key: str, address: str, logs: Path
) -> None:
    """Its own sidecar, which has the same variable, is ready: else the fixture had failed."""
    pool = {"name": "cloud", "url": f"http://{address}:{sliding.engine_port}", "profile": "cloud"}
    given = {"without": {}, "wrong": {"ORCH_SIDECAR_KEY": "wrong"}}
    given["right"] = {"ORCH_SIDECAR_KEY": sidecar_key}
    with ExitStack() as running:
        urls = {
            name: running.enter_context(sidecar(logs / f"{name}.log", pool, **environ))
            for name, environ in given.items()
        }
        async with session() as http:

            async def page(name: str) -> tuple[int, str]:
                try:
                    async with http.get(f"{urls[name]}/readyz") as response:
                        return response.status, (await response.json())["last_error"] or ""
                except OSError:
                    return 0, ""

            for name in ("without", "wrong"):

                async def says_why(name: str = name) -> bool:
                    status, error = await page(name)
                    return status == 503 and "ORCH_SIDECAR_KEY" in error

                await until(says_why)

            async def ready() -> bool:
                return (await page("right"))[0] == 200

            await until(ready)
            document = body("completions", 4, stream=False)
            assert (await post(http, urls["right"], "completions", document)).status == 200
            assert (await post(http, urls["without"], "completions", document)).status == 503
            url = f"{sliding.engine_url}{CLAIMS_PATH}{'a' * 16}"
            async with http.put(url, json=CLAIM) as response:
                assert response.status == 403, "on its own host, too"
    assert not any(sidecar_key in text for text in texts_of(logs))
