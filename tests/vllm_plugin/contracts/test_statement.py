"""The lines of finished sequences, and the heads of chains."""

from __future__ import annotations

import pytest

from vllm_plugin.contracts.dsse import Signed
from vllm_plugin.contracts.statement import (
    STATEMENT_TYPE,
    Leaf,
    first_head,
    key_id,
    next_head,
    parse_leaf,
    sequence_of,
)

LEAF = Leaf(7, "0123456789abcdef", 1.5, 2.25, 0.0, -0.5, 0.75, 20, 6, 16, "length")
LINE = "7,0123456789abcdef,1.500000,2.250000,0.000000,-0.500000,0.750000,20,6,16,length"


def test_line_of_a_sequence_is_read_as_it_is_written() -> None:
    assert LEAF.line == LINE
    assert parse_leaf(LINE) == LEAF


@pytest.mark.parametrize(
    "line",
    ["", LINE + "\n", LINE + ",", LINE.replace("7,", "0,", 1), LINE.replace("1.5", "nan"),
     LINE.replace(",20,", ",-20,"), LINE.replace("length", "Länge"), "07" + LINE[1:]],
)  # fmt: skip
def test_other_lines_are_refused(line: str) -> None:
    with pytest.raises(ValueError, match="is not a finished sequence"):
        parse_leaf(line)


def test_chains_of_different_engines_and_kinds_begin_differently() -> None:
    heads = {first_head(chain, epoch) for chain in ("leaves", "statements") for epoch in ("a", "b")}
    assert len(heads) == 4
    assert next_head(next_head(b"h", b"a"), b"b") != next_head(next_head(b"h", b"b"), b"a")
    assert key_id(b"") == (
        "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    )


@pytest.mark.parametrize("payload", [b"[]", b"{}", b'{"sequence": "1"}', b"{", b"5"])
def test_statement_without_a_sequence_number_is_refused(payload: bytes) -> None:
    assert sequence_of(Signed(STATEMENT_TYPE, b'{"sequence": 3}', "", b"")) == 3
    with pytest.raises(ValueError, match=r"sequence is|Expecting"):
        sequence_of(Signed(STATEMENT_TYPE, payload, "", b""))
