"""The format that a scraper gets."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.parser import text_string_to_metric_families as classic

from orch_sidecar.observability.exposition import END, prefers_openmetrics, rendered
from tests.orch_sidecar.openmetrics import openmetrics

# As the releases send it: 2.30, 2.53, 3.
PROMETHEUS = [
    "application/openmetrics-text; version=0.0.1,application/openmetrics-text; version=1.0.0,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
    "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;"
    "q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,"
    "application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;"
    "escaping=allow-utf-8;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1",
]


@pytest.mark.parametrize(
    "accept",
    [
        *PROMETHEUS,
        "application/openmetrics-text",
        "Application/OpenMetrics-Text; Version=1.0.0",
        'application/openmetrics-text; version="1.0.0"',
        "text/plain, application/openmetrics-text",
        "text/html;q=0.9, application/openmetrics-text;q=0.2",
    ],
)
def test_openmetrics_is_rendered_if_accepted(accept: str) -> None:
    assert prefers_openmetrics(accept)


@pytest.mark.parametrize(
    "accept",
    [
        "",
        "*/*",
        "text/plain",
        "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
        "application/openmetrics-text;version=0.0.1,text/plain;version=0.0.4;q=0.5",
        "application/openmetrics-text;version=2.0.0",
        "application/openmetrics-text;version=abc",
        "application/openmetrics-text;q=0",
        "application/openmetrics-text;q=much",
        "application/openmetrics-text;q=nan",
        "application/openmetrics-text;q=0.2, text/plain;q=0.9",
        ";;;,,=,q=;",
        "application/openmetrics-textual",
    ],
)
def test_classic_text_is_rendered_otherwise(accept: str) -> None:
    assert not prefers_openmetrics(accept)


def test_families_of_a_registry_are_rendered_in_each_format_without_an_end() -> None:
    registry = CollectorRegistry()
    Counter("things", "Some.", registry=registry).inc(3)
    body = rendered(registry, openmetrics=True)
    assert END not in body
    [family] = openmetrics(body + END)
    assert (family.name, family.samples[0].name, family.samples[0].value) == (
        "things",
        "things_total",
        3,
    )
    body = rendered(registry, openmetrics=False)
    assert "things_total" in {s.name for family in classic(body.decode()) for s in family.samples}
