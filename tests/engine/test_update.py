"""While an update rolls, entries of the release before and of this one serve with the engines and
the pools of either: nothing is refused, and no slot is counted twice."""

from __future__ import annotations

import asyncio
import io
import subprocess
import tarfile
import tomllib
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from orch_sidecar.tools.local.stack import Stack
from tests.engine.clients import body, engine_state, post, session, until
from tests.engine.conftest import SLOTS, Stacks, make_plan
from tests.engine.sidecars import all_ready, sidecar
from tests.engine.storm import metric

ROOT: Final = Path(__file__).parents[2]
# What is updated from: the last commit whose wire differs. Later ones replace it.
BEFORE: Final = "a9949011d318222e79c4e601efe4274cf17bc9d5"
CLIENTS: Final = 24
REQUESTS: Final = 3
NEW, OLD = "new", "old"


@pytest.fixture(scope="session")
def before(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which Python runs the release before, with its entry points."""
    folders = ("orch_sidecar", "vllm_plugin", "profiles", "pyproject.toml")
    command = ["git", "-C", str(ROOT), "archive", BEFORE, *folders]
    packed = subprocess.run(command, capture_output=True)
    if packed.returncode:
        pytest.skip(f"the history lacks {BEFORE[:7]}: {packed.stderr.decode()[:200]}")
    tree = tmp_path_factory.mktemp("before")
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as files:
        files.extractall(tree, filter="data")
    project = tomllib.loads((tree / "pyproject.toml").read_text())["project"]
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    # Of two distributions of one name, the first on the path counts.
    metadata = tree / "orch_sidecar-0.1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: orch-sidecar\nVersion: 0.1.0\n"
    )
    (metadata / "entry_points.txt").write_text("\n".join(lines))
    # The packages of the working directory are not the ones that are meant.
    return {"PYTHONPATH": str(tree), "PYTHONSAFEPATH": "1"}


# The old engine is a start of its own. What a sidecar takes an old engine's state for is in
# tests/integration/test_many_sidecars.py.
@pytest.fixture(params=[NEW, pytest.param(OLD, marks=pytest.mark.long)])
def served(
    request: pytest.FixtureRequest, stacks: Stacks, logs: Path, before: dict[str, str]
) -> Iterator[Stack]:
    """An engine and the sidecar of its pool, of this release and of the one before."""
    if request.param == NEW:
        yield request.getfixturevalue("cloud")
        return
    plan = make_plan("cloud", SLOTS, logs / "before", before)
    yield stacks.use("before", replace(plan, profile="cloud"))
    stacks.stop("before")


async def test_entries_of_both_releases_serve_while_an_update_rolls(
    served: Stack, before: dict[str, str], logs: Path
) -> None:
    """Each entry has the engine itself as a pool, and the sidecar in front of it: four claim its
    slots."""
    pools = (
        {"name": "engine", "url": served.engine_url, "profile": "cloud"},
        {"name": "lower", "url": served.url, "profile": "cloud", "tier": True},
    )
    answers: Counter[int] = Counter()
    with ExitStack() as entries:
        files = [logs / "entry-new.log", logs / "entry-old.log"]
        urls = [
            entries.enter_context(sidecar(files[0], *pools, ORCH_SIDECAR_KEY="k" * 32)),
            entries.enter_context(sidecar(files[1], *pools, **before)),
        ]
        async with session() as http:
            for url in urls:
                await all_ready(http, url)

            async def client(number: int) -> None:
                headers = {"X-Orch-Pool": ("engine", "lower")[number // 2 % 2]}
                for each in range(REQUESTS):
                    document = body("chat", 8 + each, stream=bool(number % 3), seed=number)
                    seen = await post(http, urls[number % 2], "chat", document, headers)
                    while seen.status == 429:  # on a slow machine it would miss its SLO
                        await asyncio.sleep(float(seen.headers["retry-after-ms"]) / 1000)
                        seen = await post(http, urls[number % 2], "chat", document, headers)
                    assert seen.error is None
                    assert (seen.status, b'"error"' in seen.data) == (200, False), seen.data
                    answers[seen.status] += 1

            await asyncio.gather(*map(client, range(CLIENTS)))

            async def empty() -> bool:
                states = [await engine_state(http, url) for url in (*urls, served.engine_url)]
                return all(state["leased"] == state["foreign"] == 0 for state in states)

            await until(empty)
            engine = await engine_state(http, served.engine_url)
            assert engine["peak"] <= SLOTS
            for url in (*urls, served.url):
                assert await metric(http, url, "orch_oversubscription_violations_total") == 0
    assert answers == {200: CLIENTS * REQUESTS}
    for file in files:
        text = file.read_text()
        assert "did not take" not in text, text[-2000:]
        assert "Traceback" not in text, text[-2000:]
