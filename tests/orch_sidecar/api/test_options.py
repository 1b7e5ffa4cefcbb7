"""The options of requests, parsed from their headers."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from orch_sidecar.api.options import NO_OPTIONS, RequestOptions, read_options, service_class_of
from orch_sidecar.api.refusal import Reason, Refusal
from vllm_plugin.contracts.profile import MeasurementType, ServiceClass

INTERACTIVE, BULK = ServiceClass.INTERACTIVE, ServiceClass.BULK


def options(*fields: tuple[str, str]) -> RequestOptions:
    found = read_options(CIMultiDict(fields))
    assert isinstance(found, RequestOptions), found
    return found


def refusal(*fields: tuple[str, str]) -> Refusal:
    found = read_options(CIMultiDict(fields))
    assert isinstance(found, Refusal), found
    assert found.reason is Reason.INVALID_REQUEST
    return found


def test_request_without_options_has_no_options() -> None:
    assert (
        read_options(CIMultiDict({"Host": "h", "X-Request-Id": "1", "X-Orch-Lease": "x"}))
        is NO_OPTIONS
    )
    assert RequestOptions() == NO_OPTIONS


def test_each_option_is_read_in_any_case() -> None:
    assert options(
        ("x-orch-class", "Bulk"),
        ("X-ORCH-DEADLINE-MS", "1500"),
        ("X-Orch-Max-Wait-Ms", " 0.5 "),
        ("X-Orch-Do-Not-Queue", "true"),
        ("X-Orch-Pool", "Home"),
        ("X-Orch-Measurement-Type", "single_stream"),
        ("X-Orch-No-Coalesce", ""),
        ("X-Orch-Scenario", "run-1.warm_up"),
    ) == RequestOptions(
        service_class=BULK,
        deadline_ms=1500.0,
        max_wait_ms=0.5,
        do_not_queue=True,
        pool="home",
        prefers=False,
        measurement_type=MeasurementType.SINGLE_STREAM,
        no_coalesce=True,
        scenario="run-1.warm_up",
    )


@pytest.mark.parametrize("value", ["home; prefer", "home;prefer", "home ; PREFER "])
def test_pool_may_be_a_preference(value: str) -> None:
    found = options(("X-Orch-Pool", value))
    assert (found.pool, found.prefers) == ("home", True)


@pytest.mark.parametrize(
    ("value", "flag"),
    [("", True), ("true", True), ("1", True), ("TRUE", True), ("false", False), ("0", False)],
)
def test_flag_is_set_by_presence_or_by_value(value: str, flag: bool) -> None:
    assert options(("X-Orch-Do-Not-Queue", value)).do_not_queue is flag
    assert options(("X-Orch-No-Coalesce", value)).no_coalesce is flag


def test_wait_of_zero_is_valid_and_deadline_of_zero_is_not() -> None:
    assert options(("X-Orch-Max-Wait-Ms", "0")) == RequestOptions(max_wait_ms=0.0)
    assert "above 0" in refusal(("X-Orch-Deadline-Ms", "0")).message


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("X-Orch-Class", "urgent", "must be one of interactive, bulk"),
        ("X-Orch-Class", "", "must be one of interactive, bulk"),
        ("X-Orch-Deadline-Ms", "soon", "milliseconds"),
        ("X-Orch-Deadline-Ms", "-1", "milliseconds"),
        ("X-Orch-Deadline-Ms", "0.0", "above 0"),
        ("X-Orch-Deadline-Ms", "1e3", "milliseconds"),
        ("X-Orch-Deadline-Ms", "nan", "milliseconds"),
        ("X-Orch-Deadline-Ms", "1_000", "milliseconds"),
        ("X-Orch-Deadline-Ms", "\u0661", "milliseconds"),
        ("X-Orch-Deadline-Ms", "9" * 30, "milliseconds"),
        ("X-Orch-Max-Wait-Ms", "", "milliseconds"),
        ("X-Orch-Do-Not-Queue", "yes", "true or 1"),
        ("X-Orch-No-Coalesce", "2", "true or 1"),
        ("X-Orch-Run", "two words", "letters, digits"),
        ("X-Orch-Run", "", "1 to 64"),
        ("X-Orch-Run", "x" * 65, "1 to 64"),
        ("X-Orch-Scenario", "two words", "letters, digits"),
        ("X-Orch-Scenario", "", "1 to 64"),
        ("X-Orch-Scenario", "x" * 65, "1 to 64"),
        ("X-Orch-Pool", "home; please", "`name; prefer`"),
        ("X-Orch-Pool", "no such/pool", "name of a pool"),
        ("X-Orch-Measurement-Type", "fast", "must be one of single_stream, batched_online"),
    ],
)
def test_invalid_option_is_rejected_with_name_value_and_rule(
    name: str, value: str, rule: str
) -> None:
    found = refusal((name, value))
    assert name in found.message
    assert repr(value[:40])[:-1] in found.message
    assert rule in found.message
    assert found.param == name


@pytest.mark.parametrize("name", ["X-Orch-Class", "X-Orch-Pool", "X-Orch-Deadline-Ms"])
def test_repeated_option_is_rejected(name: str) -> None:
    assert "must be sent only once" in refusal((name, "1"), (name.lower(), "1")).message


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("x-smg-priority", "system", INTERACTIVE),
        ("x-smg-priority", "Interactive", INTERACTIVE),
        ("x-smg-priority", "bulk", BULK),
        ("x-smg-priority", "default", None),
        ("x-smg-priority", "urgent", None),
        ("x-llm-d-inference-objective", "critical", INTERACTIVE),
        ("x-llm-d-inference-objective", "best-effort", BULK),
        ("x-llm-d-inference-objective", "sheddable", BULK),
        ("x-llm-d-inference-objective", "food-review", None),
        ("x-gateway-inference-objective", "bulk", BULK),
        ("x-gateway-inference-objective", "Interactive", INTERACTIVE),
        ("x-gateway-inference-objective", "food-review", None),
    ],
)
def test_headers_of_other_gateways_are_supported_or_ignored(
    name: str, value: str, expected: ServiceClass | None
) -> None:
    assert options((name, value)).service_class is expected


def test_own_header_has_precedence_over_those_of_other_gateways() -> None:
    found = options(("x-smg-priority", "bulk"), ("X-Orch-Class", "interactive"))
    assert found.service_class is INTERACTIVE
    assert (
        options(
            ("x-smg-priority", "default"), ("x-llm-d-inference-objective", "bulk")
        ).service_class
        is BULK
    )


@pytest.mark.parametrize("prefix", ["x-llm-d-", "x-"])
def test_slos_of_other_gateways_are_a_deadline_and_a_limit_of_the_time_per_token(
    prefix: str,
) -> None:
    found = options((f"{prefix}slo-ttft-ms", "500.5"), (f"{prefix}slo-tpot-ms", "40"))
    assert (found.deadline_ms, found.tpot_ms) == (500.5, 40.0)
    none = options((f"{prefix}slo-ttft-ms", "0"), (f"{prefix}slo-tpot-ms", "0"))
    assert (none.deadline_ms, none.tpot_ms) == (None, None), "as with the picker"
    for name in ("slo-ttft-ms", "slo-tpot-ms"):
        for value in ("soon", "-1", ""):
            assert refusal((f"{prefix}{name}", value)).param == f"{prefix}{name}"


def test_own_deadline_has_precedence_and_then_the_name_that_is_not_deprecated() -> None:
    both = (("x-slo-ttft-ms", "300"), ("x-llm-d-slo-ttft-ms", "200"))
    assert options(*both).deadline_ms == 200
    assert options(*both, ("X-Orch-Deadline-Ms", "100")).deadline_ms == 100


def test_fairness_id_is_kept_as_a_digest_alone() -> None:
    flows = [
        options((name, value)).flow
        for name in ("x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id")
        for value in ("team a", "team b")
    ]
    assert flows[:2] == flows[2:]
    assert len(set(flows)) == 2
    assert all(len(flow) == 32 for flow in flows)
    assert options(("x-gateway-inference-fairness-id", "")).flow == b""
    assert options(("x-gateway-inference-fairness-id", "\udcff\udcfe")).flow, "any bytes"


@pytest.mark.parametrize(
    ("header", "tier", "priority", "expected"),
    [
        (None, None, None, INTERACTIVE),
        (None, "flex", None, BULK),
        (None, "auto", 9, INTERACTIVE),
        (None, "default", None, INTERACTIVE),
        (None, "flex", -1, BULK),
        (None, None, 1, BULK),
        (None, None, 0, INTERACTIVE),
        (None, None, -5, INTERACTIVE),
        (BULK, "default", 0, BULK),
        (INTERACTIVE, "flex", 9, INTERACTIVE),
    ],
)
def test_class_is_by_header_then_tier_then_priority(
    header: ServiceClass | None, tier: str | None, priority: int | None, expected: ServiceClass
) -> None:
    assert service_class_of(RequestOptions(service_class=header), tier, priority) is expected


@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                ["X-Orch-Class", "X-Orch-Deadline-Ms", "X-Orch-Max-Wait-Ms", "X-Orch-Pool"]
            ),
            st.text(max_size=50),
        ),
        max_size=4,
    )
)
def test_any_headers_are_read_or_rejected(fields: list[tuple[str, str]]) -> None:
    found = read_options(CIMultiDict(fields))
    if isinstance(found, RequestOptions):
        assert found.deadline_ms is None or 0 < found.deadline_ms < 1e12
        assert found.max_wait_ms is None or 0 <= found.max_wait_ms < 1e12
    else:
        assert len(found.message) < 400


def test_id_of_a_run_is_kept_as_a_digest_alone() -> None:
    found = options(("X-Orch-Run", "5f0c" * 8))
    assert found.run == hashlib.sha256(b"5f0c" * 8).hexdigest()[:32]
    assert "5f0c" * 8 not in repr(found)
