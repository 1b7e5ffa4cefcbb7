"""`orch facts verify` as a command: what it prints, and its exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from orch_sidecar import cli
from orch_sidecar.tools.facts.commands.verify import read_trusted, verifier_of
from orch_sidecar.tools.facts.signing.evidence_file import digest, evidence_of
from orch_sidecar.tools.facts.signing.trusted import entry_of
from orch_sidecar.tools.facts.tables import files
from orch_sidecar.tools.facts.tables.check import valid_rows
from tests.orch_sidecar.tools.facts.signing.signed import (
    BEGIN_S,
    Operator,
    SigningEngine,
    evidence_and_row,
    result_of,
    row_of,
)


@pytest.fixture
def facts(tmp_path: Path) -> Path:
    """A table with a verified row, and `trusted.yaml` beside it."""
    operator = Operator()
    begin = datetime.fromtimestamp(BEGIN_S, UTC) - timedelta(days=1)
    text = entry_of("lab", operator.public, begin, begin + timedelta(days=90))
    (tmp_path / "trusted.yaml").write_text(text, encoding="utf-8")
    content, row = evidence_and_row(SigningEngine(operator).measure())
    (tmp_path / f"{digest(content)}.json").write_bytes(content)
    table = tmp_path / "facts.csv"
    files.append(table, [row])
    return table


def verify(*words: object) -> int:
    try:
        cli.main(["facts", "verify", *map(str, words)])
    except SystemExit as ended:
        return int(str(ended.code))
    return 0


def test_verified_table_exits_with_0(facts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify(facts, "--trusted", facts.with_name("trusted.yaml")) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{facts}:2: verified (key lab)",
        "  by the engine: 300 tokens/s over 0.0599999 s, 3 sequences, batch mean 3, max 3",
        "  client-measured: ttft_p50_ms",
        f"{facts}: 1 row (1 verified)",
    ]


def test_single_row_that_is_not_verified_makes_1(
    facts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files.append(facts, [row_of(run="another")])
    assert verify(facts, "--trusted", facts.with_name("trusted.yaml")) == 1
    printed = capsys.readouterr().out
    assert f"{facts}:3: unverified\n  the row has no evidence\n" in printed
    assert f"{facts}: 2 rows (1 verified, 1 unverified)" in printed


def test_without_trusted_keys_no_signer_is_known(
    facts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify(facts) == 1
    assert f"{facts}:2: intact, signer unknown\n" in capsys.readouterr().out


def test_evidence_file_is_verified_alone(facts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trusted = facts.with_name("trusted.yaml")
    [evidence] = facts.parent.glob("*.json")
    assert verify(evidence, "--trusted", trusted) == 0
    assert capsys.readouterr().out.startswith(f"{evidence}: verified (key lab)\n")
    evidence.write_bytes(evidence.read_bytes()[:-1] + b" ")
    assert verify(evidence, "--trusted", trusted) == 1
    assert verify(facts, "--trusted", trusted) == 1
    assert capsys.readouterr().out.count(": failed\n") == 2


@pytest.mark.parametrize("name", ["trusted.yaml", "facts.csv", "nowhere"])
def test_unreadable_input_exits_with_2(facts: Path, name: str) -> None:
    facts.with_name("trusted.yaml").write_text("- 5\n", encoding="utf-8")
    assert verify(facts, "--trusted", facts.with_name(name)) == 2
    assert verify(facts.with_name("nowhere.csv")) == 2


def test_row_with_a_fault_fails_and_others_are_verified(
    facts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with facts.open("a", encoding="utf-8") as file:
        file.write("a,b\n")
    assert verify(facts, "--trusted", facts.with_name("trusted.yaml")) == 1
    printed = capsys.readouterr().out
    assert f"{facts}:2: verified (key lab)" in printed
    assert f"{facts}:3: failed\n  " in printed


def test_table_without_rows_or_with_another_header_is_not_verified(
    facts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    header = facts.read_text(encoding="utf-8").splitlines()[0]
    facts.write_text(header + "\n", encoding="utf-8")
    assert verify(facts) == 1
    assert capsys.readouterr().out == f"{facts}: no rows\n"
    facts.write_text("a,b\n", encoding="utf-8")
    assert verify(facts) == 1
    assert "the header must be" in capsys.readouterr().err


def test_comparison_keeps_verified_rows_apart(
    facts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content, row = evidence_of(
        SigningEngine().measure(run="r2"), row_of(run="r2"), result_of(row_of())
    )
    facts.with_name(f"{digest(content)}.json").write_bytes(content)
    files.append(facts, [row])
    table = files.read(facts)
    trusted = read_trusted(facts.with_name("trusted.yaml"))
    verifier = verifier_of([table], trusted)
    assert [verifier(located) for located in valid_rows(table)] == [True, False]
    cli.main(["facts", "compare", str(facts), "--json"])
    assert len(json.loads(capsys.readouterr().out)["sets"]) == 1
    cli.main(
        [
            "facts",
            "compare",
            str(facts),
            "--json",
            "--trusted",
            str(facts.with_name("trusted.yaml")),
        ]
    )
    assert len(json.loads(capsys.readouterr().out)["sets"]) == 2


def test_text_in_evidence_cannot_pass_for_a_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    signed = SigningEngine().measure()
    [signature] = signed.after["signatures"]
    forged = [signature | {"keyid": "k\nfacts.csv:2: verified (key lab)\x1b[8m"}]
    after = signed.after | {"signatures": forged}
    content, _ = evidence_and_row(signed.model_copy(update={"after": after}))
    path = tmp_path / f"{digest(content)}.json"
    path.write_bytes(content)
    assert verify(path) == 1
    verdict, reason = capsys.readouterr().out.splitlines()
    assert verdict == f"{path}: failed"
    assert "signed by the key k\\nfacts.csv:2: verified (key lab)\\x1b[8m, not" in reason


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (["verify", "facts.csv"], 2, "signatures need the package cryptography: install it"),
        (["check", "facts.csv"], 0, ""),
        (["compare", "facts.csv"], 0, ""),
    ],
)
def test_only_signatures_need_the_library(
    words: list[str], code: int, error: str, facts: Path
) -> None:
    without = "import sys; sys.modules['cryptography'] = None\nfrom orch_sidecar import cli"
    run = subprocess.run(
        [sys.executable, "-c", f"{without}\ncli.main(['facts', *{words!r}])"],
        cwd=facts.parent,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == code, run.stderr
    assert error in run.stderr
    assert "Traceback" not in run.stderr
