"""`orch facts verify` as a command: what it prints, and its exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from orch_sidecar import cli
from orch_sidecar.tools.facts.signing.files import digest, entry_of, evidence_of, parse_evidence
from orch_sidecar.tools.facts.tables import files
from tests.orch_sidecar.tools.facts.signing.signed import (
    BEGIN_S,
    CLIENTS,
    LOADED,
    Operator,
    SigningEngine,
    evidence_and_row,
    result_of,
    row_of,
)

GIVEN: dict[str, str | int | float] = {"given": "model_name"}


@pytest.fixture
def facts(tmp_path: Path) -> Path:
    """A table with a verified row, and `trusted.yaml` beside it."""
    operator = Operator()
    begin = datetime.fromtimestamp(BEGIN_S, UTC) - timedelta(days=1)
    text = entry_of("lab", operator.public, begin, begin + timedelta(days=90))
    (tmp_path / "trusted.yaml").write_text(text, encoding="utf-8")
    named = row_of(model_name="Tiny", notes=GIVEN)
    content, row = evidence_and_row(SigningEngine(operator).measure(), named)
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
        f"{facts}:2: verified (key lab); client-measured: {', '.join(CLIENTS)}; "
        "given by hand to orch bench: model_name 'Tiny'",
        "  signed: from 2026-09-21T14:13:20.000Z, to 2026-09-21T14:13:20.100Z, "
        f"models tiny alias, weights_sha256 {'w' * 64}, loaded {LOADED}, statements 2",
        "  engine: tokens_per_s 300, window_s 0.0599999, sequences 3, generated_tokens 18, "
        "batch_mean 3, batch_max 3, prefix_hit_ratio 0",
        f"{facts}: 1 row (1 verified)",
    ]


def test_verdicts_are_printed_as_json(facts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files.append(facts, [row_of(run="another")])
    assert verify(facts, "--json", "--trusted", facts.with_name("trusted.yaml")) == 1
    verified, unverified = json.loads(capsys.readouterr().out)
    assert (verified["line"], verified["verdict"], verified["signer"]) == (2, "verified", "lab")
    assert verified["signed"] == {
        "from": "2026-09-21T14:13:20.000Z",
        "to": "2026-09-21T14:13:20.100Z",
        "models": ["tiny", "alias"],
        "weights_sha256": "w" * 64,
        "loaded": LOADED,
        "statements": 2,
    }
    assert verified["engine"]["generated_tokens"] == 18
    assert verified["client_measured"] == CLIENTS
    assert verified["given"] == {"to": "orch bench", "values": {"model_name": "Tiny"}}
    assert (unverified["verdict"], unverified["signed"]) == ("unverified", None)
    assert unverified["reasons"] == ["the row has no evidence"]


def test_run_makes_one_row_in_all_tables_and_a_copy_is_that_row(
    facts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trusted = facts.with_name("trusted.yaml")
    copy = facts.with_name("copy.csv")
    copy.write_bytes(facts.read_bytes())
    assert verify(facts, copy, "--trusted", trusted) == 0
    assert capsys.readouterr().out.count(" (1 verified)") == 2
    [evidence] = facts.parent.glob("*.json")
    found = parse_evidence(evidence.read_bytes())
    again, row = evidence_of(
        found.signed, row_of(notes=GIVEN | {"seed": 2}, model_name="Tiny"), result_of(row_of())
    )
    facts.with_name(f"{digest(again)}.json").write_bytes(again)
    copy.unlink()
    files.append(copy, [row])
    assert verify(facts, copy, "--trusted", trusted) == 1
    assert f"the nonce of {facts}:2: one run makes one row" in capsys.readouterr().out


def test_run_of_the_future_is_refused(
    facts: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: BEGIN_S - 301)
    assert verify(facts, "--trusted", facts.with_name("trusted.yaml")) == 1
    assert (
        "  it was signed at 2026-09-21T14:13:20.100Z, and the checker's clock is at 2026-09-"
        in (capsys.readouterr().out)
    )
    monkeypatch.setattr(time, "time", lambda: BEGIN_S - 299)
    assert verify(facts, "--trusted", facts.with_name("trusted.yaml")) == 0


def test_without_trusted_keys_no_signer_is_known(
    facts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify(facts) == 1
    assert f"{facts}:2: intact, signer unknown; client" in capsys.readouterr().out


def test_evidence_file_is_verified_alone(facts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trusted = facts.with_name("trusted.yaml")
    [evidence] = facts.parent.glob("*.json")
    assert verify(evidence, "--trusted", trusted) == 0
    assert capsys.readouterr().out.startswith(f"{evidence}: verified (key lab); ")
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
    other = row_of(run="r2", model_name="Tiny", notes=GIVEN)
    content, row = evidence_of(SigningEngine().measure(run="r2"), other, result_of(row_of()))
    facts.with_name(f"{digest(content)}.json").write_bytes(content)
    files.append(facts, [row])
    cli.main(["facts", "compare", str(facts), "--json"])
    assert len(remarks(capsys)) == 1
    trusted = str(facts.with_name("trusted.yaml"))
    cli.main(["facts", "compare", str(facts), "--json", "--trusted", trusted])
    first, second = remarks(capsys)
    assert ("evidence verified" in first, "evidence verified" in second) == (True, False)


def remarks(capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    """Returns those of the points of the one set and way that was printed."""
    [found] = json.loads(capsys.readouterr().out)["sets"]
    return [point["remarks"] for way in found["ways"] for point in way["points"]]


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
