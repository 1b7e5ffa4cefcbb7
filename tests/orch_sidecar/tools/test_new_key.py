"""`orch key`: what goes where, and what is stored."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from orch_sidecar import cli
from orch_sidecar.auth.keys import parse
from orch_sidecar.tools.facts.signing.files import parse_trusted
from vllm_plugin.evidence.epoch_key import KEY_VARIABLE, operator_key_file


def made(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[str, str]:
    """The entry and the key."""
    cli.main(["key", *words])
    printed = capsys.readouterr()
    return printed.out, printed.err.removesuffix("\n")


def test_key_goes_to_stderr_and_its_entry_to_stdout(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    entry, key = made(capsys, "alice")
    other_entry, other = made(capsys, "bob", "--class", "bulk", "--concurrency", "3")
    assert key != other
    assert key not in entry
    known = parse(entry + other_entry)
    alice, bob = known.find(key.encode()), known.find(other.encode())
    assert alice is not None
    assert bob is not None
    assert (alice.name, alice.bulk, alice.concurrency) == ("alice", False, None)
    assert (bob.name, bob.bulk, bob.concurrency) == ("bob", True, 3)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["a b"],
        ["alice", "--class", "interactive"],
        ["alice", "--concurrency", "0"],
        ["alice", "--concurrency", "many"],
    ],
)
def test_wrong_usage_makes_no_key(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        cli.main(["key", *words])
    assert exited.value.code == 2
    printed = capsys.readouterr()
    assert "usage: orch key" in printed.err
    assert "orch-" not in printed.err + printed.out


@pytest.mark.parametrize("lost", ["2>&-", "2>/dev/full"])
def test_no_entry_is_made_where_its_key_would_be_lost(lost: str) -> None:
    command = f"{sys.executable} -c 'from orch_sidecar.cli import main; main()' key alice {lost}"
    done = subprocess.run(command, shell=True, stdout=subprocess.PIPE, text=True)
    assert (done.returncode != 0, done.stdout) == (True, "")


def test_help_names_the_output_of_key_and_entry(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["key", "--help"])
    text = capsys.readouterr().out
    assert "key is printed on stderr" in text
    assert ">> keys.yaml" in text


def test_operators_key_goes_to_a_closed_file_and_its_public_part_to_stdout(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "operator.pem"
    entry, printed = made(capsys, "lab-2026", "--evidence", str(path), "--days", "30")
    assert printed == ""
    assert path.stat().st_mode & 0o7777 == 0o600
    [key] = parse_trusted(entry).values()
    assert (key.name, key.not_after - key.not_before) == ("lab-2026", timedelta(days=30))
    private = load_pem_private_key(path.read_bytes(), password=None)
    assert isinstance(private, Ed25519PrivateKey)
    assert private.public_key().public_bytes_raw() == key.public
    assert operator_key_file({KEY_VARIABLE: str(path)}) == path


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--evidence", "{}"), "File exists: it must be a new file"),
        (("--evidence", "{}/x"), "it must be a new file"),
        (
            ("--evidence", "{}x", "--class", "bulk"),
            "class, limits, weight, roles and groups are of API keys",
        ),
        (
            ("--evidence", "{}x", "--weight", "2"),
            "class, limits, weight, roles and groups are of API keys",
        ),
        (("--evidence", "{}x", "--days", "9999999"), "--days 9999999: the key must end before"),
        (("--evidence", "{}x", "--days", "9" * 18), "the key must end before the year 10000"),
        (("--days", "3"), "API keys have no end"),
    ],
)
def test_operators_key_never_replaces_a_file(
    words: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "there"
    path.write_text("precious", encoding="utf-8")
    with pytest.raises(SystemExit) as exited:
        cli.main(["key", "lab", *(word.format(path) for word in words)])
    assert exited.value.code == 2
    assert message in capsys.readouterr().err
    assert [path.read_text(encoding="utf-8"), *tmp_path.iterdir()] == ["precious", path]
