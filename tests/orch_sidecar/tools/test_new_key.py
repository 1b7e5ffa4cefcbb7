"""`orch key`: what goes where, and what is stored."""

from __future__ import annotations

from pathlib import Path

import pytest

from orch_sidecar import cli
from orch_sidecar.auth.keys import parse


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


def test_help_names_the_output_of_key_and_entry(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["key", "--help"])
    text = capsys.readouterr().out
    assert "key is printed on stderr" in text
    assert ">> keys.yaml" in text
