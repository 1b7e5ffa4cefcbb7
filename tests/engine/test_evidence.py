"""The evidence of a measurement of the real engine, and its verification without the engine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from orch_sidecar.tools.facts.commands.tables import beside, read_trusted
from orch_sidecar.tools.facts.signing.verdict import Verdict, Verified, Verifier
from orch_sidecar.tools.facts.tables import files
from orch_sidecar.tools.facts.tables.table import valid_rows
from orch_sidecar.tools.local.stack import Stack
from tests.engine.test_measuring import TOKENS, lengths, orch, rows_of

REQUESTS = ("--requests", "24", "--duration", "0")
SLO = ("--slo-ttft-ms", "400", "--slo-tpot-ms", "40", "--slo-latency-ms", "900")


@pytest.mark.parametrize(
    "load",
    [
        pytest.param(("--concurrency", "4"), marks=pytest.mark.long, id="clients"),
        pytest.param(("--rate", "25", *SLO), id="rate"),
    ],
)
def test_row_of_a_signed_run_is_verified_and_a_changed_byte_is_not(
    cloud: Stack, operator_key: Path, tmp_path: Path, load: Sequence[str]
) -> None:
    table, trusted = tmp_path / "tps_model_gpu.csv", operator_key.with_name("trusted.yaml")
    where = ("--url", cloud.url, "--output", str(tmp_path / "result.json"), "--facts", str(table))
    printed = orch("bench", "batched-online", *load, *REQUESTS, *lengths("cloud"), *where)
    assert "without evidence" not in printed
    found = verify(table, trusted)
    assert (found.verdict, found.signer, *found.reasons) == (
        Verdict.VERIFIED,
        "lab",
    )
    assert found.proof is not None
    assert (len(found.proof.leaves), found.proof.totals.output_tokens) == (24, 24 * TOKENS["cloud"])
    assert verify(table).verdict is Verdict.SIGNER_UNKNOWN
    [row] = rows_of(table)
    evidence = tmp_path / f"{row['scenario_notes'].rpartition('sha256:')[2]}.json"
    content = evidence.read_bytes()
    evidence.write_bytes(content.replace(b",length", b",lengtH", 1))
    assert verify(table, trusted).verdict is Verdict.FAILED


def verify(table: Path, trusted: Path | None = None) -> Verified:
    """The verdict on the only row of a table."""
    rows = valid_rows(files.read(table))
    [verdict] = Verifier(beside(table), read_trusted(trusted)).rows(rows).values()
    return verdict
