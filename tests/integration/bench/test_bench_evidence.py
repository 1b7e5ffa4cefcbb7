"""`orch bench` and the evidence of its rows: asked for through sidecars, kept, and verified."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from orch_sidecar import cli
from orch_sidecar.tools.bench.reports import add_row
from orch_sidecar.tools.bench.results.result import Result, Status
from orch_sidecar.tools.facts.tables import files
from tests.integration.bench.decoding import Decoding
from tests.integration.bench.measuring import CLOSED, SINGLE, known, measured, url_of
from tests.integration.bench.signing import Signing
from tests.integration.keyed import KeyRing
from tests.integration.running import Running, Start, all_ready, eventually, pools
from tests.integration.scripted_engine import ScriptedEngine
from tests.integration.tiers import above
from tests.patience import HANG_S
from vllm_plugin.contracts.statement import STATEMENTS_PATH
from vllm_plugin.evidence.chains import StatementRequest

pytestmark = pytest.mark.usefixtures("fast_reports")


@pytest.fixture
def operator_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """An operator's key; the file of trusted keys is beside it."""
    path = tmp_path / "operator.pem"
    cli.main(["key", "lab", "--evidence", str(path)])
    (tmp_path / "trusted.yaml").write_text(capsys.readouterr().out, encoding="utf-8")
    return path


@pytest.fixture
def signing(engine: ScriptedEngine, decoding: Decoding, operator_key: Path) -> Signing:
    return Signing(engine, decoding, operator_key)


def kept(result: Result, folder: Path) -> Path:
    """The table with the row of a result."""
    table = folder / "tps_model_gpu.csv"
    add_row(result, table)
    return table


def files_in(folder: Path, pattern: str = "*") -> list[Path]:
    return sorted(folder.glob(pattern))


def verify(*words: object) -> int:
    """The exit code of `orch facts verify`."""
    try:
        cli.main(["facts", "verify", *map(str, words)])
    except SystemExit as ended:
        return int(str(ended.code))
    return 0


async def test_run_is_verified_and_a_changed_byte_is_not(
    signing: Signing, start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = await measured(url_of(await start()), CLOSED)
    assert (result.status, result.evidence.missing) == (Status.PRELIMINARY, "")
    table = kept(result, tmp_path)
    trusted = tmp_path / "trusted.yaml"
    assert verify(table, "--trusted", trusted) == 0
    printed = capsys.readouterr().out
    assert ":2: verified (key lab)" in printed
    assert "client-measured: arrivals, at_once, seed, ttft_p50_ms" in printed
    assert verify(table) == 1
    assert "intact, signer unknown" in capsys.readouterr().out
    text = table.read_text(encoding="utf-8")
    throughput = files.read(table).rows[0].fields[9]
    table.write_text(text.replace(throughput, f"9{throughput}"), encoding="utf-8")
    assert verify(table, "--trusted", trusted) == 1
    assert "failed" in capsys.readouterr().out
    table.write_text(text, encoding="utf-8")
    [evidence] = files_in(tmp_path, "*.json")
    content = evidence.read_bytes()
    evidence.write_bytes(content.replace(b'"length"', b'"Length"', 1).replace(b"1", b"2", 1))
    assert verify(evidence, "--trusted", trusted) == 1
    assert "failed" in capsys.readouterr().out


async def test_row_that_no_table_takes_leaves_no_evidence(
    signing: Signing, start: Start, tmp_path: Path
) -> None:
    result = await measured(url_of(await start()), CLOSED)
    engine = result.engine.model_copy(update={"gpu": "=1+1"})
    with pytest.raises(ValueError, match="gpu"):
        add_row(result.model_copy(update={"engine": engine}), tmp_path / "facts.csv")
    assert [path.name for path in files_in(tmp_path)] == ["operator.pem", "trusted.yaml"]


async def test_nonce_is_new_in_each_run_and_the_same_in_both_statements(
    signing: Signing, start: Start
) -> None:
    url = url_of(await start())
    results = [await measured(url, CLOSED) for _ in range(2)]
    nonces = [asked["nonce"] for asked in signing.asked]
    assert [nonces[0], nonces[2]] == [nonces[1], nonces[3]]
    assert nonces[0] != nonces[2]
    assert [asked["run"] for asked in signing.asked[::2]] == [each.id for each in results]
    assert [asked.get("since") for asked in signing.asked] == [None, 1, None, 3]


async def test_statement_of_others_between_does_not_break_the_chain(
    signing: Signing, start: Start, tmp_path: Path
) -> None:
    sidecar = await start()
    began = signing.evidence.finished.add

    def add_and_ask(finished_requests: Iterable[Any], at_s: float) -> None:
        began(finished_requests, at_s)
        if signing.evidence.finished.count == 5:
            signing.evidence.statement(StatementRequest("other", None, None), at_s, at_s)

    signing.evidence.finished.add = add_and_ask  # type: ignore[method-assign]
    result = await measured(url_of(sidecar), CLOSED)
    assert len(known(result.evidence.signed).between) == 1
    assert verify(kept(result, tmp_path), "--trusted", tmp_path / "trusted.yaml") == 0


async def test_engine_that_signs_nothing_is_not_asked_and_its_row_is_unverified(
    engine: ScriptedEngine, cloud: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = await measured(url_of(cloud), CLOSED)
    assert "offers no signed statements" in result.evidence.missing
    assert STATEMENTS_PATH not in [request.path for request in engine.received]
    assert verify(kept(result, tmp_path)) == 1
    assert "unverified" in capsys.readouterr().out


async def test_busy_signer_is_asked_again_and_a_broken_one_costs_only_the_evidence(
    signing: Signing, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orch_sidecar.tools.bench.runs.run._RETRY_DELAY_S", 0.01)
    url = url_of(await start())
    signing.fails = [429]
    assert (await measured(url, CLOSED)).evidence.signed is not None
    signing.fails = [500] * 3
    result = await measured(url, CLOSED)
    assert (result.status, result.evidence.signed) == (Status.PRELIMINARY, None)
    assert "returned 500" in result.evidence.missing


async def test_interruption_ends_the_wait_for_a_statement(signing: Signing, start: Start) -> None:
    signing.silent_after = 1
    running = asyncio.create_task(measured(url_of(await start()), CLOSED))
    await eventually(lambda: len(signing.asked) == 2)
    running.cancel()
    result = await asyncio.wait_for(running, HANG_S)
    assert result.evidence.missing == "interrupted before the engine's statement"
    assert (result.status, result.counts.answered) == (Status.INCOMPLETE, 24)


async def test_statement_comes_through_two_tiers(signing: Signing, start: Start) -> None:
    result = await measured(url_of(await above(start, await start())), CLOSED)
    assert result.evidence.signed is not None
    assert len(signing.asked) == 2


async def test_statement_is_of_the_pool_that_is_measured(
    signing: Signing, engine: ScriptedEngine, at_home: ScriptedEngine, start: Start
) -> None:
    sidecar = await all_ready(await start(**pools(home=at_home, cloud=engine)))
    result = await measured(url_of(sidecar), CLOSED, pool="cloud")
    assert result.evidence.signed is not None
    assert len(signing.asked) == 2
    result = await measured(url_of(sidecar), SINGLE, pool="home")
    assert "offers no signed statements" in result.evidence.missing


async def test_client_without_a_key_gets_no_statement(
    signing: Signing, keyed: Running, ring: KeyRing
) -> None:
    client = await keyed.client()
    body, of_alice = json.dumps({"run": "r"}).encode(), [ring.bearer("alice")]
    assert (await client.request("POST", STATEMENTS_PATH, body)).status == 401
    assert (await client.request("POST", STATEMENTS_PATH, body, of_alice)).status == 200
