"""The minimum of a run whose figures may be published."""

from __future__ import annotations

from orch_sidecar.tools.facts.labels.early_stopping import least_samples
from orch_sidecar.tools.facts.tables.agreement.publication import LEAST_SAMPLES, MIN_QUERIES
from orch_sidecar.tools.facts.tables.row import Label


def test_fewest_samples_are_those_of_early_stopping() -> None:
    assert {at: least_samples(at) for at in LEAST_SAMPLES} == LEAST_SAMPLES
    assert MIN_QUERIES[Label.SINGLE_STREAM] == least_samples(90)
    assert MIN_QUERIES[Label.BATCHED_ONLINE] == least_samples(99)
