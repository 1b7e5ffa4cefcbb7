"""The effects of a profile on telemetry: vLLM's traces endpoint, the resource, the log."""

from __future__ import annotations

import logging

import pytest

from tests.vllm_plugin.enforcement.engine_args import Args, apply
from vllm_plugin.contracts.profile import load
from vllm_plugin.enforcement import telemetry

GRPC, HTTP = "grpc", "http/protobuf"


@pytest.mark.parametrize(
    ("environ", "endpoint", "protocol"),
    [
        ({}, None, None),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, None, None),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317"}, "http://c:4317", GRPC),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, "http://c:4318/v1/traces", HTTP),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318/"}, "http://c:4318/v1/traces", HTTP),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c/otlp"}, "http://c/otlp/v1/traces", HTTP),
        (
            {
                "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:9999",
                "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
            },
            "http://c:9999",
            GRPC,
        ),
        (
            {
                "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317",
                "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
                "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
            },
            "http://c:4317/v1/traces",
            HTTP,
        ),
        (
            {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/own"},
            "http://c:4318/own",
            HTTP,
        ),
        (
            {
                "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://own:4317",
                "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318",
            },
            "http://own:4317",
            GRPC,
        ),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:1", "OTEL_SDK_DISABLED": "TRUE"}, None, None),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:1", "OTEL_TRACES_EXPORTER": "none"}, None, None),
    ],
)
def test_standard_variables_become_vllms_own_argument(
    environ: dict[str, str], endpoint: str | None, protocol: str | None
) -> None:
    args = Args()
    after = apply("home", args, dict(environ))
    assert args.otlp_traces_endpoint == endpoint
    if protocol is not None:
        assert after["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"] == protocol
    else:
        assert after == environ


def test_endpoint_that_the_operator_gave_is_kept() -> None:
    args = Args(otlp_traces_endpoint="http://mine:4317")
    after = apply("home", args, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"})
    assert args.otlp_traces_endpoint == "http://mine:4317"
    assert after["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"] == GRPC


def test_resource_is_labelled_and_keeps_the_operators_attributes() -> None:
    environ = {"OTEL_RESOURCE_ATTRIBUTES": "team=ml,k8s.pod.name=p%2C1"}
    telemetry.label_resource(load("cloud"), environ)
    assert environ["OTEL_RESOURCE_ATTRIBUTES"] == (
        "team=ml,k8s.pod.name=p%2C1,measurement_type=batched_online,orch.profile=cloud"
    )
    assert environ["OTEL_SERVICE_NAME"] == "vllm"


def test_labelling_is_idempotent_and_the_profile_wins() -> None:
    environ = {
        "OTEL_RESOURCE_ATTRIBUTES": "measurement_type=offline, orch.profile=x,team=ml",
        "OTEL_SERVICE_NAME": "mine",
    }
    telemetry.label_resource(load("home"), environ)
    once = dict(environ)
    telemetry.label_resource(load("home"), environ)
    assert environ == once
    assert environ["OTEL_RESOURCE_ATTRIBUTES"] == (
        "team=ml,measurement_type=single_stream,orch.profile=home"
    )
    assert environ["OTEL_SERVICE_NAME"] == "mine"


@pytest.mark.parametrize(("text", "kept"), [("Iteration(%d): x", False), ("Engine %03d", True)])
def test_line_per_step_is_dropped_from_the_log(text: str, kept: bool) -> None:
    record = logging.LogRecord("vllm", logging.INFO, "f", 1, text, None, None)
    assert telemetry.IterationLineFilter().filter(record) is kept
