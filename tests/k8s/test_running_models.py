"""Two models at one entry, run: real engines behind the manifests' own sidecars and entry."""

from __future__ import annotations

from pathlib import Path

import openai
import pytest

from tests.k8s.deployed import deployed
from tests.patience import HANG_S

pytestmark = [pytest.mark.engine, pytest.mark.long]


def test_each_request_is_served_by_the_pool_of_its_model(tmp_path: Path) -> None:
    with deployed(tmp_path, "own_models") as there:
        client = openai.OpenAI(base_url=f"{there.url}/v1", api_key=there.key, max_retries=0)
        assert len(set(there.models.values())) == 2
        assert {each.id for each in client.models.list()} == set(there.models.values())
        engines = {pool: there.pods(pool)[0] for pool in there.models}
        before = {pool: there.engine(pod)["requests_total"] for pool, pod in engines.items()}
        asked = {pool: count for count, pool in enumerate(there.models, start=2)}
        for pool, count in asked.items():
            for _ in range(count):
                answer = client.chat.completions.create(
                    model=there.models[pool],
                    messages=[{"role": "user", "content": "Hello"}],
                    max_tokens=4,
                )
                assert answer.model == there.models[pool]
                assert answer.choices[0].finish_reason in ("stop", "length")
        with pytest.raises(openai.NotFoundError):
            client.completions.create(model="another", prompt="Hello", max_tokens=4)
        client.close()

        def served() -> dict[str, int]:
            now = {pool: there.engine(pod)["requests_total"] for pool, pod in engines.items()}
            return {pool: now[pool] - before[pool] for pool in now}

        there.cluster.wait(lambda: sum(served().values()) >= sum(asked.values()), HANG_S)
        assert served() == asked
