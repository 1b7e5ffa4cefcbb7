"""The figures of a set of completed requests."""

from __future__ import annotations

import pytest

from orch_sidecar.tools.facts.labels.figures import CompletedRequest


def test_tpot_of_one_sequence_excludes_its_first_token() -> None:
    assert CompletedRequest(0.0, 1.0, 2.0, 8, 11).tpot_s == pytest.approx(0.1)


def test_tpot_of_several_sequences_divides_by_the_longest_one() -> None:
    """Four sequences of eleven tokens are generated side by side, in the time of one."""
    request = CompletedRequest(0.0, 1.0, 2.0, 8, 44, longest_output_tokens=11)

    assert request.tpot_s == pytest.approx(0.1)
    assert request.sequence_tokens == 11


def test_several_sequences_of_one_token_have_no_tpot() -> None:
    assert CompletedRequest(0.0, 1.0, 1.0, 8, 4, longest_output_tokens=1).tpot_s is None
