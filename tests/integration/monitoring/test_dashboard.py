"""Each query of the dashboard, asked of a Prometheus that scrapes a sidecar under load."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.monitoring.traffic import load, reporting
from tests.integration.running import Start
from tests.integration.scripted_engine import STEP_TIME, ScriptedEngine
from tests.prometheus import (
    MANIFESTS,
    Prometheus,
    alerting_rules,
    needs_prometheus,
    prometheus,
    promtool,
)

DASHBOARD: dict[str, Any] = json.loads(
    (MANIFESTS / "monitoring" / "dashboard.json").read_text(encoding="utf-8")
)
QUANTILES = {"p50", "p90", "p95", "p99"}


def panels(kind: str | None = None) -> list[dict[str, Any]]:
    """The panels that show something, of one kind or of all."""
    shown = [each for each in DASHBOARD["panels"] if each["type"] != "row"]
    return [each for each in shown if kind in (None, each["type"])]


def queries() -> Iterator[tuple[str, str]]:
    """Title of the panel, and the query, with the variables as Grafana would set them."""
    for panel in panels():
        for target in panel["targets"]:
            query = target["expr"]
            for name, value in (
                ("$__rate_interval", "3s"),
                ("$__range", "3s"),
                ("$engines", "orch"),
                ("$entry", "orch"),
                ("$pool", ".*"),
            ):
                query = query.replace(name, value)
            assert "$" not in query, f"{panel['title']}: {query} has a variable that is not set"
            yield panel["title"], query


async def without_data(server: Prometheus) -> list[tuple[str, str]]:
    """The panels and queries that return nothing."""
    return [each for each in queries() if not await server.query(each[1])]


@pytest.fixture
def untraced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The collector is unreachable: spans are dropped, and counted."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.1")


@needs_prometheus
def test_each_query_is_valid(tmp_path: Path) -> None:
    """promtool reads them as recording rules."""
    rules = [
        {"record": f"panel_{number}", "expr": query} for number, (_, query) in enumerate(queries())
    ]
    content = {"groups": [{"name": "panels", "rules": rules}]}
    (tmp_path / "panels.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    assert f"{len(rules)} rules found" in promtool(tmp_path, "check", "rules", "panels.yaml")


def test_each_query_names_the_labels_that_it_keeps() -> None:
    """So a label that is added divides no line, also while sidecars without it are scraped."""
    for title, query in queries():
        for part in query.split(" / "):
            assert re.match(r"(histogram_quantile\([0-9.]+, )?(sum|max|avg) by \(", part), title


async def test_metrics_of_panels_and_alerts_are_the_sidecars(
    untraced: None, engine: ScriptedEngine, start: Start, tmp_path: Path
) -> None:
    running = await start(
        request_log=str(tmp_path / "requests"),
        api_keys_file=tmp_path / "keys.yaml",
        api_keys_required=False,
    )
    page = await (await running.client()).get("/metrics")
    families = set(re.findall(r"^# TYPE (\S+)", page.body.decode(), re.MULTILINE))
    alerting = [rule["expr"] for group in alerting_rules()["groups"] for rule in group["rules"]]
    asked = " ".join([*alerting, *(query for _, query in queries())])
    named = set(re.findall(r"\b(?:orch|gen_ai)_[a-z_]+", asked))
    assert {re.sub("_(bucket|sum|count)$", "", name) for name in named} <= families


@pytest.mark.long
@needs_prometheus
async def test_each_query_returns_data_under_load(
    untraced: None, engine: ScriptedEngine, start: Start, tmp_path: Path
) -> None:
    reporting(engine, 0.02, step_time=STEP_TIME)
    sidecar = await start()
    labels = {sidecar.port: {"job": "orch"}}
    scraping = prometheus(tmp_path, labels, scrape_every="250ms")
    async with load(sidecar.port, 6), scraping as server:
        empty: list[tuple[str, str]] = []
        for _ in range(200):
            await asyncio.sleep(0.25)
            if not (empty := await without_data(server)):
                break
        assert empty == []
        listed = await server.get("label/pool/values", **{"match[]": 'orch_pool_info{job="orch"}'})
        assert listed == ["cloud"], "what the variable lists"


def test_panels_have_units_and_what_must_stay_0_turns_red() -> None:
    for panel in panels():
        defaults = panel["fieldConfig"]["defaults"]
        assert defaults["unit"], panel["title"]
        if panel["type"] == "stat":
            assert defaults["thresholds"]["steps"][1:] == [{"color": "red", "value": 1}]
    assert {each["title"] for each in panels("stat")} >= {"Slots oversubscribed", "Spans dropped"}


@pytest.mark.parametrize(
    ("title", "slo"),
    [
        ("Time to the first token", "ttft"),
        ("Time per token", "tpot"),
        ("Wait for a slot", None),
        ("Duration", None),
        ("Error of predicted waits", None),
    ],
)
def test_times_are_shown_as_quantiles_beside_their_slo(title: str, slo: str | None) -> None:
    [panel] = [each for each in panels() if each["title"] == title]
    legends = [target["legendFormat"] for target in panel["targets"]]
    assert {legend.split()[0] for legend in legends} - {"SLO"} == QUANTILES
    slos = [each["expr"] for each in panel["targets"] if each["legendFormat"].startswith("SLO")]
    if slo is None:
        assert slos == []
    else:
        [expression] = slos
        assert f'slo="{slo}"' in expression
        [override] = panel["fieldConfig"]["overrides"]
        assert override["matcher"] == {"id": "byRegexp", "options": "/SLO/"}


def test_panels_have_numbers_of_their_own_and_do_not_overlap() -> None:
    numbers = [each["id"] for each in DASHBOARD["panels"]]
    assert len(set(numbers)) == len(numbers)
    taken = [
        (x, y)
        for each in DASHBOARD["panels"]
        for x in range(each["gridPos"]["x"], each["gridPos"]["x"] + each["gridPos"]["w"])
        for y in range(each["gridPos"]["y"], each["gridPos"]["y"] + each["gridPos"]["h"])
    ]
    assert len(set(taken)) == len(taken)
    assert max(x for x, _ in taken) == 23
