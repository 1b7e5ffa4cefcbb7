"""The file of trusted keys: what it accepts, and the message for what it does not."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
import yaml

from orch_sidecar.tools.facts.signing.files import entry_of, parse_trusted
from tests.orch_sidecar.tools.facts.signing.signed import Operator
from vllm_plugin.contracts.statement import key_id

BEGIN = datetime(2026, 11, 22, 12, tzinfo=UTC)
END = BEGIN + timedelta(days=365)


def entry(**changes: object) -> str:
    made = yaml.safe_load(entry_of("lab", Operator().public, BEGIN, END))[0] | changes
    return yaml.safe_dump([{name: each for name, each in made.items() if each is not None}])


def test_entries_are_read_as_they_are_written() -> None:
    first, second = Operator(), Operator()
    text = entry_of("lab", first.public, BEGIN, END) + entry_of("old", second.public, BEGIN, END)
    found = parse_trusted(text)
    assert list(found) == [key_id(first.public), key_id(second.public)]
    key = found[key_id(first.public)]
    assert (key.name, key.public, key.not_before, key.not_after) == (
        "lab",
        first.public,
        BEGIN,
        END,
    )
    assert key.is_valid_at(BEGIN.timestamp())
    assert key.is_valid_at(END.timestamp())
    assert not key.is_valid_at(BEGIN.timestamp() - 1)
    assert not key.is_valid_at(END.timestamp() + 1)


def test_time_may_be_written_without_quotes() -> None:
    text = entry().replace("'", "")
    assert next(iter(parse_trusted(text).values())).not_before == BEGIN


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must be keys, as `orch key --evidence` prints them: .* should be a valid list"),
        ("[]", "should have at least 1 item"),
        ("a: [b", "^is not valid YAML: while parsing a flow sequence .* got '<stream end>' .*$"),
        ("- 5", "0 is 5: must be an object"),
        (entry(name=None), "0.name is missing"),
        (entry(public="x"), "0.public is 'x': Extra inputs"),
        (entry(public_key="%%"), "public_key: it must be standard base64"),
        (entry(public_key="YWJj"), "must be the SHA-256 of a public key of 32 bytes"),
        (entry(id="sha256:0"), "id is sha256:0: it must be the SHA-256"),
        (entry(not_before="2026-11-22T12:00:00"), "0.not_before is .*: Input should have timezone"),
        (entry(not_after="2026-11-22T12:00:00Z"), "not_after must be after not_before"),
    ],
)
def test_invalid_file_is_refused_with_the_rule(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_trusted(text)


def test_key_that_occurs_twice_is_refused() -> None:
    text = entry()
    with pytest.raises(ValueError, match="occurs twice: change the validity"):
        parse_trusted(text + text)
