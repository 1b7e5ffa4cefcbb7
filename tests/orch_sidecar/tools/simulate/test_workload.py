"""Arrivals and lengths."""

from __future__ import annotations

from itertools import pairwise
from statistics import fmean, pstdev

import pytest

from orch_sidecar.tools.simulate.traffic import LONGEST, Workload
from vllm_plugin.contracts.profile import ServiceClass

INTERACTIVE, BULK = ServiceClass.INTERACTIVE, ServiceClass.BULK


def test_same_seed_gives_the_same_arrivals() -> None:
    workload = Workload()
    assert workload.arrivals(10.0, 50.0, 1) == workload.arrivals(10.0, 50.0, 1)
    assert workload.arrivals(10.0, 50.0, 1) != workload.arrivals(10.0, 50.0, 2)


def test_rate_share_and_means_are_as_requested() -> None:
    arrivals = Workload(bulk_share=0.7).arrivals(50.0, 400.0, 3)
    assert len(arrivals) / 400 == pytest.approx(50, rel=0.03)
    bulk = [each for each in arrivals if each.service_class is BULK]
    rest = [each for each in arrivals if each.service_class is INTERACTIVE]
    assert len(bulk) / len(arrivals) == pytest.approx(0.7, abs=0.01)
    assert fmean(each.prompt for each in rest) == pytest.approx(128, rel=0.03)
    assert fmean(each.output for each in rest) == pytest.approx(64, rel=0.03)
    assert fmean(each.prompt for each in bulk) == pytest.approx(8 * 128, rel=0.03)
    assert fmean(each.output for each in bulk) == pytest.approx(8 * 64, rel=0.03)
    assert max(each.output for each in bulk) <= LONGEST * 8 * 64


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_intervals_vary_with_burstiness(burstiness: float) -> None:
    arrivals = Workload(burstiness=burstiness).arrivals(50.0, 400.0, 3)
    gaps = [later.at - earlier.at for earlier, later in pairwise(arrivals)]
    assert pstdev(gaps) / fmean(gaps) == pytest.approx(burstiness**-0.5, rel=0.05)


def test_max_tokens_are_given_only_if_known() -> None:
    known, unknown = (
        Workload(max_tokens_known=given).arrivals(5.0, 20.0, 1) for given in (True, False)
    )
    assert all(each.max_tokens == each.output for each in known)
    assert all(each.max_tokens is None for each in unknown)
    assert [each.output for each in known] == [each.output for each in unknown]


def test_class_alone_has_nothing_of_the_other() -> None:
    workload = Workload()
    for service_class in ServiceClass:
        arrivals = workload.alone(service_class).arrivals(5.0, 20.0, 1)
        assert {each.service_class for each in arrivals} == {service_class}
