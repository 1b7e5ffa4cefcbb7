"""The alerting rules, as promtool evaluates them on written series: when each fires, and when not.

tests/integration/monitoring causes the faults themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.prometheus import alerting_rules, needs_prometheus, promtool

pytestmark = needs_prometheus

HERE = 'job="orch", instance="a:8080", pool="cloud"'
LABELS = {"job": "orch", "instance": "a:8080", "pool": "cloud"}
OF_POOL = {"job": "orch", "pool": "cloud", "class": "interactive"}
SLO = {
    f'orch_slo_seconds{{{HERE}, class="interactive", slo="ttft"}}': "0.5+0x60",
    f'orch_slo_seconds{{{HERE}, class="interactive", slo="tpot"}}': "0.1+0x60",
}
RULES = {each["alert"]: each for group in alerting_rules()["groups"] for each in group["rules"]}


def histogram(name: str, low: str, high: str, per_minute: int) -> dict[str, str]:
    """The series of a histogram with as many values between two bounds."""
    labels = f'{HERE}, class="interactive"'
    return {
        f'{name}_bucket{{{labels}, le="{low}"}}': "0+0x60",
        f'{name}_bucket{{{labels}, le="{high}"}}': f"0+{per_minute}x60",
        f'{name}_bucket{{{labels}, le="+Inf"}}': f"0+{per_minute}x60",
    }


@dataclass(frozen=True)
class Case:
    """Series of a minute per value that make an alert fire between two minutes, with `labels`.
    `harmless`: the same of a state that is none of its business."""

    series: dict[str, str]
    labels: dict[str, str]
    silent_at: int
    fires_at: int
    harmless: dict[str, str]


FIRST_TOKEN = "gen_ai_server_time_to_first_token_seconds"
PER_TOKEN = "gen_ai_server_time_per_output_token_seconds"
INTERACTIVE = 'class="interactive"'


def while_updated(admitted: int, outcome: str, refused: int) -> dict[str, str]:
    """Admissions of a minute, half of them of a sidecar of the release before, whose series had no
    measurement type."""
    old = f'orch_admissions_total{{job="orch", instance="b:8080", pool="cloud", {INTERACTIVE}'
    new = f'orch_admissions_total{{{HERE}, measurement_type="batched_online", {INTERACTIVE}'
    return {
        f'{series}, outcome="{name}"}}': f"0+{count // 2}x60"
        for series in (old, new)
        for name, count in (("admitted", admitted), (outcome, refused))
    }


CASES = {
    "OrchAbsent": Case(
        {"other": "1+0x60"}, {}, 4, 6, {f"orch_pool_info{{{HERE}}}": "1+0x60"},
    ),
    "OrchSlotsOversubscribed": Case(
        {f"orch_oversubscription_violations_total{{{HERE}}}": "0 0 0 1+0x60"}, LABELS, 2, 4,
        {f"orch_oversubscription_violations_total{{{HERE}}}": "7+0x60"},
    ),
    "OrchEngineNotAnswering": Case(
        {f'orch_engine_state{{{HERE}, state="stale"}}': "0 0 1+0x60"},
        LABELS | {"state": "stale"}, 3, 5,
        {f'orch_engine_state{{{HERE}, state="{state}"}}': "1+0x60"
         for state in ("starting", "ready", "draining", "paused", "asleep")},
    ),
    "OrchApiKeysUnusable": Case(
        {'orch_api_keys_error{job="orch", instance="a:8080"}': "0 0 1+0x60"},
        {"job": "orch", "instance": "a:8080"}, 6, 8,
        {'orch_api_keys_error{job="orch", instance="a:8080"}': "0+0x60"},
    ),
    "OrchQueueBeyondSlo": Case(
        SLO | {f"orch_demand_ratio{{{HERE}}}": "0.9 1.2+0x60"}, LABELS, 9, 12,
        # A pool without an SLO, whose queue is its purpose.
        {f"orch_demand_ratio{{{HERE}}}": "9+0x60"},
    ),
    "OrchFirstTokenBeyondSlo": Case(
        SLO | histogram(FIRST_TOKEN, "0.5", "0.75", 60), OF_POOL, 9, 12,
        SLO | histogram(FIRST_TOKEN, "0.1", "0.25", 60),
    ),
    "OrchTokenTimeBeyondSlo": Case(
        SLO | histogram(PER_TOKEN, "0.1", "0.15", 60), OF_POOL, 9, 12,
        SLO | histogram(PER_TOKEN, "0.025", "0.05", 60),
    ),
    "OrchRefusals": Case(
        while_updated(90, "slo_miss", 10), OF_POOL, 4, 7, while_updated(10, "do_not_queue", 90),
    ),
    "OrchPredictionsOff": Case(
        histogram("orch_prediction_error_ratio", "0.75", "1", 60), OF_POOL, 9, 12,
        histogram("orch_prediction_error_ratio", "0.1", "0.15", 60),
    ),
    "OrchKvPreemptions": Case(
        {f"orch_engine_preemptions_total{{{HERE}}}": "0 0 0 20+0x60"}, LABELS, 2, 4,
        {f"orch_engine_preemptions_total{{{HERE}}}": "0 1+0x60"},
    ),
    "OrchLeasesOrphaned": Case(
        {f"orch_leases_orphaned_total{{{HERE}}}": "0 0 0 1+0x60"}, LABELS, 2, 4,
        {f"orch_leases_orphaned_total{{{HERE}}}": "0+0x60"},
    ),
    "OrchSpansDropped": Case(
        {'orch_spans_dropped_total{job="orch", instance="a:8080", reason="undelivered"}': "0+9x60"},
        {"job": "orch", "instance": "a:8080", "reason": "undelivered"}, 5, 8,
        {'orch_spans_dropped_total{job="orch", instance="a:8080", reason="undelivered"}': "9+0x60"},
    ),
    "OrchRequestLogDropped": Case(
        {'orch_request_log_dropped_total{job="orch", instance="a:8080"}': "0+9x60"},
        {"job": "orch", "instance": "a:8080"}, 5, 8,
        {'orch_request_log_dropped_total{job="orch", instance="a:8080"}': "9+0x60"},
    ),
}  # fmt: skip


def test_rules_are_valid_and_so_are_their_texts(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(alerting_rules()), encoding="utf-8")
    assert f"SUCCESS: {len(RULES)} rules found" in promtool(
        tmp_path, "check", "rules", "rules.yaml"
    )
    for rule in RULES.values():
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert set(rule["annotations"]) == {"summary", "description"}


def test_every_alert_has_a_case() -> None:
    assert set(CASES) == set(RULES)


def evaluated(alert: str, series: dict[str, str], at: dict[int, list[dict[str, str]]]) -> Any:
    """One of promtool's tests: the alerts that fire at these minutes."""
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": [
            {
                "eval_time": f"{minute}m",
                "alertname": alert,
                "exp_alerts": [{"exp_labels": labels} for labels in firing],
            }
            for minute, firing in at.items()
        ],
    }


def test_each_alert_fires_when_its_fault_has_lasted_and_at_nothing_else(tmp_path: Path) -> None:
    """Texts are left out: promtool would compare them with their values filled in."""
    rules = [
        {name: value for name, value in each.items() if name != "annotations"}
        for each in RULES.values()
    ]
    tests = []
    for alert, case in CASES.items():
        severity = {"severity": RULES[alert]["labels"]["severity"]}
        at = {case.silent_at: [], case.fires_at: [case.labels | severity]}
        tests.append(evaluated(alert, case.series, at))
        tests.append(evaluated(alert, case.harmless, {minute: [] for minute in range(0, 60, 5)}))
    for name, content in (
        ("rules.yaml", {"groups": [{"name": "orch", "rules": rules}]}),
        ("tests.yaml", {"rule_files": ["rules.yaml"], "tests": tests}),
    ):
        (tmp_path / name).write_text(yaml.safe_dump(content), encoding="utf-8")
    assert "SUCCESS" in promtool(tmp_path, "test", "rules", "tests.yaml")
