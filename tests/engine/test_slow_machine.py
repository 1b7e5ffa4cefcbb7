"""An engine that is too slow for its SLO: it serves as many as it can, and says that it cannot."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from orch_sidecar.tools.local.stack import Stack
from tests.engine.clients import body, engine_state, post, session, until
from tests.engine.conftest import SLOTS
from tests.engine.sidecars import all_ready, sidecar
from vllm_plugin.contracts.profile import directory

CLIENTS = 60
TOKENS = 12


@pytest.fixture
def demanding(cloud: Stack, logs: Path, tmp_path: Path) -> Iterator[str]:
    """The URL of a sidecar whose profile asks for a token every hundredth of a millisecond: what no
    engine can, as a slow machine cannot keep what the shipped profile asks for."""
    profile = yaml.safe_load((directory() / "cloud.yaml").read_text())
    profile["admission"]["interactive"] |= {"tpot_p95_ms": 0.01, "ttft_p95_ms": 600_000}
    profile["admission"]["interactive"]["max_wait_s"] = 600
    file = tmp_path / "cloud.yaml"
    file.write_text(yaml.safe_dump(profile))
    pool = {"name": "cloud", "url": cloud.engine_url, "profile": str(file)}
    with sidecar(logs / "demanding.log", pool) as url:
        yield url


async def test_slo_per_token_that_no_batch_keeps_costs_no_request_and_no_slot(
    cloud: Stack, demanding: str
) -> None:
    """As many clients at once as would wait in the engine alone."""
    async with session() as http:
        await all_ready(http, demanding)

        async def known() -> bool:
            await post(http, demanding, "chat", body("chat", 64, stream=False))
            limits = (await engine_state(http, demanding))["limits"]
            return bool(limits["tpot_out_of_reach"])

        await until(known)
        before = await engine_state(http, cloud.engine_url)
        answers = await asyncio.gather(
            *(
                post(http, demanding, "chat", body("chat", TOKENS, stream=True))
                for _ in range(CLIENTS)
            )
        )
        assert [each.status for each in answers] == [200] * CLIENTS
        state = await engine_state(http, demanding)
        assert state["limits"]["interactive"]["batch"] == SLOTS, "it was 4, the least"
        assert state["oversubscription_violations_total"] == 0
        after = await engine_state(http, cloud.engine_url)
        steps = {
            int(size): after["steps_by_batch"][size][0]
            - before["steps_by_batch"].get(size, [0, 0])[0]
            for size in after["steps_by_batch"]
        }
        assert steps.get(SLOTS, 0) > 0, "all slots were used"
        assert max(size for size, count in steps.items() if count) == SLOTS
