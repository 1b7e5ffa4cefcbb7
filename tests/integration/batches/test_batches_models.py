"""A batch with rows of several models, each of which an engine of its own has."""

from __future__ import annotations

from pathlib import Path

from tests.integration.batches.batching import counts, lines, row
from tests.integration.batches.conftest import MakeClient
from tests.integration.running import Start, all_ready, eventually, pools
from tests.integration.scripted_engine import Engine, ScriptedEngine


async def test_rows_of_a_model_whose_engine_is_away_hold_no_others_back(
    start: Start, client: MakeClient, engine: ScriptedEngine, another: Engine, tmp_path: Path
) -> None:
    """They come first in the file, and are more than may wait; they run once it is back."""
    large = await another(models=("large",))
    running = await all_ready(
        await start(batches=str(tmp_path / "batches"), **pools(a=engine, b=large))
    )
    batches = client(running)
    await large.stop()
    await eventually(lambda: running.sidecar.pools["b"].watcher.state == "down")
    content = [row(f"large-{each}", seed=each, model="large") for each in range(40)]
    content += [row(f"tiny-{each}", seed=each) for each in range(40)]
    batch = await batches.create(lines(content))
    await eventually(lambda: len(engine.generating) == 40)
    assert not large.generating
    await large.start()
    batch = await batches.until(batch)
    assert (batch.status, counts(batch)) == ("completed", (80, 80, 0))
