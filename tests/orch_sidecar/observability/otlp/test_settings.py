"""The OTEL_* variables of the export."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.util.re import parse_env_headers

from orch_sidecar.observability.otlp.settings import Compression, ExportSettings, otlp_protocol

COMMON = "OTEL_EXPORTER_OTLP_"
TRACES = "OTEL_EXPORTER_OTLP_TRACES_"
HTTP, GRPC = {f"{COMMON}PROTOCOL": "http/protobuf"}, {f"{COMMON}PROTOCOL": "grpc"}


@pytest.fixture(autouse=True)
def nothing_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """A test of a warning reads it, and clears the log."""
    yield
    check(caplog)


def check(caplog: pytest.LogCaptureFixture) -> None:
    assert [record.getMessage() for record in caplog.get_records("call")] == []


def read(*parts: dict[str, str], **more: str) -> ExportSettings:
    environ = {f"{COMMON}ENDPOINT": "http://collector:1234"}
    for part in parts:
        environ |= part
    return ExportSettings.from_environ(environ | {f"OTEL_{k}": v for k, v in more.items()})


def test_defaults_are_those_of_the_specification() -> None:
    assert ExportSettings.from_environ({}) == ExportSettings(
        protocol="http/protobuf", endpoint="http://localhost:4318/v1/traces"
    )
    assert ExportSettings.from_environ(GRPC) == ExportSettings("grpc", "localhost:4317")


@pytest.mark.parametrize(
    ("common", "traces", "url"),
    [
        ("http://collector:4318", "", "http://collector:4318/v1/traces"),
        ("http://collector:4318/", "", "http://collector:4318/v1/traces"),
        ("http://collector:4318/mine/", "", "http://collector:4318/mine/v1/traces"),
        ("http://collector:4318?a=b", "", "http://collector:4318/v1/traces?a=b"),
        (" http://[::1]:4318 ", "", "http://[::1]:4318/v1/traces"),
        ("http://other", "https://collector/", "https://collector/"),
        ("http://other", "https://collector", "https://collector"),
        ("", "https://collector/api/v2?key=1", "https://collector/api/v2?key=1"),
    ],
)
def test_url_is_that_of_traces_or_made_from_the_common_one(
    common: str, traces: str, url: str
) -> None:
    settings = read(HTTP, {f"{COMMON}ENDPOINT": common, f"{TRACES}ENDPOINT": traces})
    assert settings.endpoint == url
    assert settings.insecure == url.startswith("http:")


@pytest.mark.parametrize(
    ("endpoint", "insecure", "target", "without_tls"),
    [
        ("http://collector:4317", "", "collector:4317", True),
        ("http://collector:4317", "false", "collector:4317", True),  # the scheme precedes it
        ("https://collector:4317/path", "true", "collector:4317", False),
        ("collector:4317", "", "collector:4317", False),
        ("collector:4317", "True", "collector:4317", True),
        ("dns:///collector:4317", "true", "dns:///collector:4317", True),
        ("unix:///run/otel.sock", "true", "unix:///run/otel.sock", True),
        ("http://[::1]:4317", "", "[::1]:4317", True),
    ],
)
def test_target_of_grpc_comes_with_and_without_a_scheme(
    endpoint: str, insecure: str, target: str, without_tls: bool
) -> None:
    found = read(GRPC, {f"{COMMON}ENDPOINT": endpoint, f"{TRACES}INSECURE": insecure})
    assert (found.endpoint, found.insecure) == (target, without_tls)


@pytest.mark.parametrize(
    ("protocol", "endpoint"),
    [
        (HTTP, "collector:4318"),
        (HTTP, "ftp://collector"),
        (HTTP, "http://"),
        (HTTP, "http://collector:port"),
        (HTTP, "http://[::1"),
        (GRPC, "http://"),
        (GRPC, "https://collector:99999"),
    ],
)
def test_endpoint_that_cannot_be_used_prevents_the_start(
    protocol: dict[str, str], endpoint: str
) -> None:
    with pytest.raises(ValueError, match=r"OTEL_EXPORTER_OTLP_ENDPOINT is '.*', must .* like"):
        read(protocol, {f"{COMMON}ENDPOINT": endpoint})


def test_password_of_an_endpoint_is_not_shown() -> None:
    with pytest.raises(ValueError, match=r"is 'http://\*\*\*@host:x/', must"):
        read(HTTP, {f"{COMMON}ENDPOINT": "http://me:pass/w@rd@host:x/"})


def test_unknown_protocol_prevents_the_start() -> None:
    with pytest.raises(ValueError, match=r"TRACES_PROTOCOL is 'http/json', must be 'grpc' or"):
        read({f"{TRACES}PROTOCOL": "http/json"})


@pytest.mark.parametrize(
    ("environ", "protocol"),
    [
        ({}, None),
        ({f"{COMMON}ENDPOINT": ""}, None),
        ({f"{COMMON}ENDPOINT": "http://c:4318"}, "http/protobuf"),
        ({f"{TRACES}ENDPOINT": "http://c:4317/"}, "grpc"),
        ({f"{COMMON}ENDPOINT": "c:9"}, "grpc"),
        ({f"{COMMON}ENDPOINT": "http://c:4317"} | HTTP, "http/protobuf"),
        ({f"{COMMON}ENDPOINT": "http://c"} | HTTP | {f"{TRACES}PROTOCOL": "grpc"}, "grpc"),
        ({f"{COMMON}ENDPOINT": "http://c", "OTEL_SDK_DISABLED": "TRUE"}, None),
        ({f"{COMMON}ENDPOINT": "http://c", "OTEL_TRACES_EXPORTER": "none"}, None),
    ],
)
def test_protocol_is_configured_or_follows_from_the_port(
    environ: dict[str, str], protocol: str | None
) -> None:
    assert otlp_protocol(environ) == protocol


def test_batches_are_configured() -> None:
    settings = read(
        BSP_MAX_QUEUE_SIZE="100", BSP_MAX_EXPORT_BATCH_SIZE="10", BSP_SCHEDULE_DELAY="250"
    )
    assert (settings.max_queue_size, settings.max_batch_size) == (100, 10)
    assert settings.schedule_delay_s == 0.25


def test_batch_is_never_larger_than_the_queue(caplog: pytest.LogCaptureFixture) -> None:
    assert read(BSP_MAX_QUEUE_SIZE="100").max_batch_size == 100
    check(caplog)
    both = read(BSP_MAX_QUEUE_SIZE="100", BSP_MAX_EXPORT_BATCH_SIZE="101")
    assert both.max_batch_size == 100
    assert "BATCH_SIZE is '101', must be at most OTEL_BSP_MAX_QUEUE_SIZE (100)" in caplog.text
    caplog.clear()


@pytest.mark.parametrize(
    ("common", "traces", "bsp", "limit"),
    [
        ("", "", "", 10.0),
        ("3", "", "", 3.0),  # seconds
        ("3", "0.5", "", 0.5),
        ("60", "", "", 30.0),
        ("", "", "2000", 2.0),  # milliseconds
        ("0", "", "", 30.0),
        ("", "", "0", 10.0),
        ("0", "", "0", None),
    ],
)
def test_export_has_the_shorter_of_two_time_limits_and_zero_is_none(
    common: str, traces: str, bsp: str, limit: float | None
) -> None:
    found = read({f"{COMMON}TIMEOUT": common, f"{TRACES}TIMEOUT": traces}, BSP_EXPORT_TIMEOUT=bsp)
    assert found.timeout_s == limit


@pytest.mark.parametrize("value", ["five", "-1", "1e3", "0x10", "5s", "nan", "1_000", "9" * 400])
@pytest.mark.parametrize(
    "name",
    [
        "OTEL_BSP_MAX_QUEUE_SIZE",
        "OTEL_BSP_MAX_EXPORT_BATCH_SIZE",
        "OTEL_BSP_SCHEDULE_DELAY",
        "OTEL_BSP_EXPORT_TIMEOUT",
        "OTEL_EXPORTER_OTLP_TIMEOUT",
    ],
)
def test_invalid_number_costs_a_warning_and_the_default(
    caplog: pytest.LogCaptureFixture, name: str, value: str
) -> None:
    assert read({name: value}) == read()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert f"{name} is {value!r}, must be " in record.getMessage()
    assert "the default applies: " in record.getMessage()
    caplog.clear()


@pytest.mark.parametrize("name", ["MAX_QUEUE_SIZE", "MAX_EXPORT_BATCH_SIZE"])
def test_sizes_are_at_least_one(caplog: pytest.LogCaptureFixture, name: str) -> None:
    assert read({f"OTEL_BSP_{name}": "0"}) == read()
    assert "must be an integer of at least 1" in caplog.text
    caplog.clear()


def test_compression_is_gzip_or_for_http_deflate(caplog: pytest.LogCaptureFixture) -> None:
    assert read(HTTP, {f"{COMMON}COMPRESSION": "GZIP"}).compression is Compression.GZIP
    assert read(GRPC, {f"{TRACES}COMPRESSION": "gzip"}).compression is Compression.GZIP
    assert read(HTTP, {f"{COMMON}COMPRESSION": "deflate"}).compression is Compression.DEFLATE
    assert read(HTTP, {f"{COMMON}COMPRESSION": "none"}).compression is Compression.NONE
    check(caplog)
    for protocol, value in ((GRPC, "deflate"), (HTTP, "zstd")):
        found = read(protocol, {f"{COMMON}COMPRESSION": value})
        assert found.compression is Compression.NONE
        assert f"OTEL_EXPORTER_OTLP_COMPRESSION is '{value}', must be one of" in caplog.text
        caplog.clear()


def test_switch_that_is_none_costs_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    odd = {f"{COMMON}ENDPOINT": "collector:4317", f"{COMMON}INSECURE": "yes"}
    assert not read(GRPC, odd).insecure
    assert "OTEL_EXPORTER_OTLP_INSECURE is 'yes', must be true or false" in caplog.text
    caplog.clear()


def test_headers_are_percent_encoded() -> None:
    text = "Authorization=Bearer%20a%2Cb%3D, x-scope = tenant=1 ,plain=two words"
    assert read(HTTP, {f"{TRACES}HEADERS": text, f"{COMMON}HEADERS": "other=1"}).headers == (
        ("authorization", "Bearer a,b="),
        ("x-scope", "tenant=1"),
        ("plain", "two words"),
    )


def test_headers_are_those_that_opentelemetry_takes_without_its_log_of_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for character in map(chr, range(1, 130)):
        for text in (f"a{character}b = c", f"a=b{character}c ", f"{character}=d"):
            expected = tuple(parse_env_headers(text, liberal=True).items())
            caplog.clear()
            assert read(HTTP, {f"{TRACES}HEADERS": text}).headers == expected
            assert not [each for each in caplog.records if each.name.startswith("opentelemetry")]
    caplog.clear()


@pytest.mark.parametrize(
    ("protocol", "text"),
    [
        (HTTP, "a=secret%0d%0ax:y"),
        (GRPC, "a=secret%C3%BC"),
        (GRPC, "a!=secret"),
        (HTTP, "a: secret"),
        (GRPC, "=secret"),
        (HTTP, "a=secret;more"),
        (HTTP, 'a="secret"'),
        (HTTP, "a=secretü"),
    ],
)
def test_header_that_cannot_be_sent_is_left_out_and_its_value_not_logged(
    caplog: pytest.LogCaptureFixture, protocol: dict[str, str], text: str
) -> None:
    assert read(protocol, {f"{COMMON}HEADERS": f"{text},b=1"}).headers == (("b", "1"),)
    assert "the header is left out" in caplog.text
    assert "secret" not in caplog.text
    caplog.clear()


@pytest.mark.parametrize("protocol", [HTTP, GRPC])
@pytest.mark.parametrize("content", [None, "no certificate"])
@pytest.mark.parametrize("name", ["CERTIFICATE", "CLIENT_CERTIFICATE"])
def test_certificate_that_cannot_be_read_prevents_the_start(
    tmp_path: Path, protocol: dict[str, str], name: str, content: str | None
) -> None:
    path = tmp_path / "file.pem"
    if content is not None:
        path.write_text(content)
    environ = {f"{COMMON}ENDPOINT": "https://collector", f"{COMMON}{name}": str(path)}
    with pytest.raises(ValueError, match=rf"OTLP_{name} is '.*file\.pem'.* must be"):
        read(protocol, environ)
    environ[f"{COMMON}ENDPOINT"] = "http://collector"  # not needed there
    assert read(protocol, environ).insecure
