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

from orch_sidecar.tools.facts.signing.files import EvidenceFile, digest, entry_of, evidence_of
from orch_sidecar.tools.facts.tables import files
from orch_sidecar.tools.facts.tables.row import Row
from tests.orch_sidecar.tools.facts.conftest import Run
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
TABLE, TRUSTED = Path("facts.csv"), ("--trusted", "trusted.yaml")


@pytest.fixture(autouse=True)
def evidence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The evidence of the verified row of TABLE, in a folder with the trusted keys."""
    monkeypatch.chdir(tmp_path)
    operator = Operator()
    begin = datetime.fromtimestamp(BEGIN_S, UTC) - timedelta(days=1)
    text = entry_of("lab", operator.public, begin, begin + timedelta(days=90))
    Path(TRUSTED[1]).write_text(text, encoding="utf-8")
    named = row_of(model_name="Tiny", notes=GIVEN)
    return added(TABLE, *evidence_and_row(SigningEngine(operator).measure(), named))


def added(table: Path, content: bytes, row: Row) -> Path:
    """Adds a row to a table, and its evidence, which is returned."""
    path = Path(f"{digest(content)}.json")
    path.write_bytes(content)
    files.append(table, [row])
    return path


def test_verified_table_exits_with_0(run: Run) -> None:
    code, out, _ = run("verify", TABLE, *TRUSTED)
    assert code == 0
    assert out.splitlines() == [
        f"{TABLE}:2: verified (key lab); client-measured: {', '.join(CLIENTS)}; "
        "given by hand to orch bench: model_name 'Tiny'",
        "  signed: from 2026-09-21T14:13:20.000Z, to 2026-09-21T14:13:20.100Z, "
        f"models tiny alias, weights_sha256 {'w' * 64}, loaded {LOADED}, statements 2",
        "  engine: tokens_per_s 300, window_s 0.0599999, sequences 3, generated_tokens 18, "
        "batch_mean 3, batch_max 3, prefix_hit_ratio 0",
        f"{TABLE}: 1 row (1 verified)",
    ]


def test_verdicts_are_printed_as_json(run: Run) -> None:
    files.append(TABLE, [row_of(run="another")])
    code, out, _ = run("verify", TABLE, "--json", *TRUSTED)
    verified, unverified = json.loads(out)
    assert (code, verified["line"], verified["verdict"]) == (1, 2, "verified")
    assert verified["signer"] == "lab"
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


def test_run_makes_one_row_in_all_tables_and_a_copy_is_that_row(run: Run, evidence: Path) -> None:
    copy = Path("copy.csv")
    copy.write_bytes(TABLE.read_bytes())
    code, out, _ = run("verify", TABLE, copy, *TRUSTED)
    assert (code, out.count(" (1 verified)")) == (0, 2)
    again = row_of(notes=GIVEN | {"seed": 2}, model_name="Tiny")
    copy.unlink()
    signed = EvidenceFile.model_validate_json(evidence.read_bytes()).signed
    added(copy, *evidence_of(signed, again, result_of(row_of())))
    code, out, _ = run("verify", TABLE, copy, *TRUSTED)
    assert (code, f"the nonce of {TABLE}:2: one run makes one row" in out) == (1, True)


def test_run_of_the_future_is_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: BEGIN_S - 301)
    code, out, _ = run("verify", TABLE, *TRUSTED)
    said = "  it was signed at 2026-09-21T14:13:20.100Z, and the checker's clock is at 2026-09-"
    assert (code, said in out) == (1, True)
    monkeypatch.setattr(time, "time", lambda: BEGIN_S - 299)
    assert run("verify", TABLE, *TRUSTED)[0] == 0


def test_without_trusted_keys_no_signer_is_known(run: Run) -> None:
    code, out, _ = run("verify", TABLE)
    assert (code, f"{TABLE}:2: intact, signer unknown; client" in out) == (1, True)


def test_evidence_file_is_verified_alone(run: Run, evidence: Path) -> None:
    code, out, _ = run("verify", evidence, *TRUSTED)
    assert (code, out.startswith(f"{evidence}: verified (key lab); ")) == (0, True)
    evidence.write_bytes(evidence.read_bytes()[:-1] + b" ")
    for file in (evidence, TABLE):
        code, out, _ = run("verify", file, *TRUSTED)
        assert (code, out.count(": failed\n")) == (1, 1)


@pytest.mark.parametrize("name", [TRUSTED[1], TABLE, "nowhere"])
def test_unreadable_input_exits_with_2(run: Run, name: str) -> None:
    Path(TRUSTED[1]).write_text("- 5\n", encoding="utf-8")
    assert run("verify", TABLE, "--trusted", name)[0] == 2
    assert run("verify", "nowhere.csv")[0] == 2


def test_row_with_a_fault_fails_and_others_are_verified(run: Run) -> None:
    with TABLE.open("a", encoding="utf-8") as file:
        file.write("a,b\n")
    code, out, _ = run("verify", TABLE, *TRUSTED)
    assert code == 1
    assert f"{TABLE}:2: verified (key lab)" in out
    assert f"{TABLE}:3: failed\n  " in out


def test_table_without_rows_or_with_another_header_is_not_verified(run: Run) -> None:
    header = TABLE.read_text(encoding="utf-8").splitlines()[0]
    TABLE.write_text(header + "\n", encoding="utf-8")
    assert run("verify", TABLE)[:2] == (1, f"{TABLE}: no rows\n")
    TABLE.write_text("a,b\n", encoding="utf-8")
    code, _, err = run("verify", TABLE)
    assert (code, "the header must be" in err) == (1, True)


def test_comparison_keeps_verified_rows_apart(run: Run) -> None:
    def verified(*words: str) -> list[bool]:
        [found] = json.loads(run("compare", TABLE, "--json", *words)[1])["sets"]
        points = [point["remarks"] for way in found["ways"] for point in way["points"]]
        return ["evidence verified" in each for each in points]

    assert verified(*TRUSTED) == [True]
    other = row_of(run="r2", model_name="Tiny", notes=GIVEN)
    added(TABLE, *evidence_of(SigningEngine().measure(run="r2"), other, result_of(row_of())))
    assert (verified(*TRUSTED), verified()) == ([True, False], [False])


def test_text_in_evidence_cannot_pass_for_a_verdict(run: Run) -> None:
    signed = SigningEngine().measure()
    [signature] = signed.after["signatures"]
    forged = [signature | {"keyid": "k\nfacts.csv:2: verified (key lab)\x1b[8m"}]
    after = signed.after | {"signatures": forged}
    path = added(Path("forged.csv"), *evidence_and_row(signed.model_copy(update={"after": after})))
    code, out, _ = run("verify", path)
    verdict, reason = out.splitlines()
    assert (code, verdict) == (1, f"{path}: failed")
    assert "signed by the key k\\nfacts.csv:2: verified (key lab)\\x1b[8m, not" in reason


@pytest.mark.parametrize(
    ("command", "code", "error"),
    [
        ("verify", 2, "signatures need the package cryptography: install it"),
        ("check", 0, ""),
        ("compare", 0, ""),
    ],
)
def test_only_signatures_need_the_library(command: str, code: int, error: str) -> None:
    without = "import sys; sys.modules['cryptography'] = None\nfrom orch_sidecar import cli"
    run = subprocess.run(
        [sys.executable, "-c", f"{without}\ncli.main(['facts', {command!r}, '{TABLE}'])"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == code, run.stderr
    assert error in run.stderr
    assert "Traceback" not in run.stderr
