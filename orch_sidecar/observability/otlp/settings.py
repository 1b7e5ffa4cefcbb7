"""Reads the OTEL_* variables of the export: where spans go, how, and in what batches.

The variable of traces (OTEL_EXPORTER_OTLP_TRACES_*) precedes the common one, and an empty one is
unset. A value that cannot be used as a number, a switch or a compression costs a warning and the
default, as OpenTelemetry's specification demands; an endpoint or a certificate that cannot be
used prevents the start, because no span would ever arrive.
"""

from __future__ import annotations

import logging
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, Self
from urllib.parse import urlsplit

logger = logging.getLogger("orch.sidecar")

# Where the specification has a collector listen if the endpoint is not configured.
_DEFAULT_ENDPOINT: Final = {
    "grpc": "http://localhost:4317",
    "http/protobuf": "http://localhost:4318",
}

# NAME=VALUE as OpenTelemetry's parser takes it; of anything else it would log the value.
_HEADER: Final = re.compile(r"[!#-'*+.0-9A-Z^-z|~-]+[ \t]*=[ \t]*[ !#-+\--:<-\[\]-~]*")

# What may stand in the value of a header; gRPC takes ASCII only.
_HEADER_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\U0010ffff]*")
_GRPC_VALUE: Final = re.compile(r"[\x20-\x7e]*")
_GRPC_NAME: Final = re.compile(r"[0-9a-z_.-]+")


class Compression(StrEnum):
    """How requests are compressed."""

    NONE = "none"
    GZIP = "gzip"
    # zlib's format, as HTTP defines it. Not in OTLP's specification: some collectors take it.
    DEFLATE = "deflate"


class _Variables:
    """The variables of an exporter of traces."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def find(self, name: str) -> tuple[str, str]:
        """Returns the variable that applies, and its value; an empty value if none is set."""
        for variable in (f"OTEL_EXPORTER_OTLP_TRACES_{name}", f"OTEL_EXPORTER_OTLP_{name}"):
            if value := self._environ.get(variable, "").strip():
                return variable, value
        return f"OTEL_EXPORTER_OTLP_{name}", ""

    def protocol(self) -> str:
        """Returns the configured one, or the one that the endpoint's port is registered for."""
        endpoint = self.find("ENDPOINT")[1]
        # A gRPC target may come without a scheme; an HTTP endpoint may not.
        grpc = endpoint.rstrip("/").endswith(":4317") or (endpoint and "://" not in endpoint)
        return self.find("PROTOCOL")[1] or ("grpc" if grpc else "http/protobuf")

    def path(self, name: str) -> Path | None:
        value = self.find(name)[1]
        return Path(value) if value else None

    def milliseconds(self, variable: str, default: int) -> float:
        """Returns it in seconds; 0 is allowed."""
        return self.integer(variable, default, least=0) / 1000

    def integer(self, variable: str, default: int, least: int = 1) -> int:
        value = self._environ.get(variable, "").strip()
        if not value:
            return default
        if re.fullmatch(r"\+?[0-9]{1,15}", value) and int(value) >= least:
            return int(value)
        _ignored(variable, value, f"an integer of at least {least}", default)
        return default

    def timeout_s(self, default: float) -> float | None:
        """Returns the time limit of an export; None: unlimited.

        In seconds, not in milliseconds, as in the SDK for Python, which the engine uses.
        """
        variable, value = self.find("TIMEOUT")
        if not value:
            return default
        if re.fullmatch(r"\+?[0-9]{1,9}(\.[0-9]*)?", value):
            return float(value) or None
        _ignored(variable, value, "seconds, 0 or more", default)
        return default

    def insecure(self) -> bool:
        variable, value = self.find("INSECURE")
        if value.lower() not in ("", "true", "false"):
            _ignored(variable, value, "true or false", "false")
        return value.lower() == "true"

    def compression(self, protocol: str) -> Compression:
        variable, value = self.find("COMPRESSION")
        allowed = list(Compression)
        if protocol == "grpc":
            allowed.remove(Compression.DEFLATE)
        if not value or value.lower() in allowed:
            return Compression(value.lower() or Compression.NONE)
        _ignored(variable, value, f"one of {', '.join(allowed)} with {protocol}", "none")
        return Compression.NONE

    def headers(self, protocol: str) -> tuple[tuple[str, str], ...]:
        from opentelemetry.util.re import parse_env_headers

        variable, value = self.find("HEADERS")
        found, given = [], [each.strip() for each in value.split(",")]
        for number, each in enumerate(given, 1):
            if each and _HEADER.fullmatch(each) is None:
                # Without its text: it may be a key.
                logger.warning(
                    "%s: header %d of %d must be NAME=VALUE, with other characters "
                    "percent-encoded; the header is left out",
                    variable, number, len(given),
                )  # fmt: skip
        valid_ones = ",".join(filter(_HEADER.fullmatch, given))
        for name, text in parse_env_headers(valid_ones, liberal=True).items():
            grpc = protocol == "grpc"
            valid = (_GRPC_VALUE if grpc else _HEADER_VALUE).fullmatch(text)
            if valid is None or (grpc and not _GRPC_NAME.fullmatch(name)):
                # Without the value: it may be a key.
                logger.warning(
                    "%s: the value of %r has characters that %s cannot send as a header; "
                    "the header is left out",
                    variable, name, protocol,
                )  # fmt: skip
            else:
                found.append((name, text))
        return tuple(found)


def _ignored(variable: str, value: str, rule: str, default: object) -> None:
    logger.warning("%s is %r, must be %s; the default applies: %s", variable, value, rule, default)


@dataclass(frozen=True, slots=True)
class ExportSettings:
    """Where spans go, how, and in what batches. Times are in seconds."""

    protocol: str
    # A URL with http/protobuf, gRPC's target with grpc.
    endpoint: str
    # Without TLS. Of gRPC only: the scheme of a URL states it.
    insecure: bool = True
    headers: tuple[tuple[str, str], ...] = ()
    compression: Compression = Compression.NONE
    certificate: Path | None = None
    client_certificate: Path | None = None
    client_key: Path | None = None
    # Of an export with all its retries; None: unlimited.
    timeout_s: float | None = 10.0
    # Spans that wait, spans in one export, and the longest wait for more of them.
    max_queue_size: int = 2048
    max_batch_size: int = 512
    schedule_delay_s: float = 5.0

    @classmethod
    def from_environ(cls, environ: Mapping[str, str], protocol: str | None = None) -> Self:
        """Reads the variables. `protocol`: None if they state it, too.

        Raises ValueError for a protocol, an endpoint or a certificate that cannot be used.
        """
        variables = _Variables(environ)
        protocol = protocol or variables.protocol()
        if protocol not in _DEFAULT_ENDPOINT:
            raise ValueError(
                f"{variables.find('PROTOCOL')[0]} is {protocol!r}, must be 'grpc' or "
                "'http/protobuf'"
            )
        endpoint, insecure = _endpoint(variables, protocol)
        queue = variables.integer("OTEL_BSP_MAX_QUEUE_SIZE", 2048)
        batch = variables.integer("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", min(512, queue))
        if batch > queue:
            rule = f"at most OTEL_BSP_MAX_QUEUE_SIZE ({queue})"
            _ignored("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", str(batch), rule, queue)
        export_s = variables.milliseconds("OTEL_BSP_EXPORT_TIMEOUT", 30_000) or None
        limits = [limit for limit in (variables.timeout_s(10.0), export_s) if limit is not None]
        settings = cls(
            protocol=protocol,
            endpoint=endpoint,
            insecure=insecure,
            headers=variables.headers(protocol),
            compression=variables.compression(protocol),
            certificate=variables.path("CERTIFICATE"),
            client_certificate=variables.path("CLIENT_CERTIFICATE"),
            client_key=variables.path("CLIENT_KEY"),
            timeout_s=min(limits, default=None),
            max_queue_size=queue,
            max_batch_size=min(batch, queue),
            schedule_delay_s=variables.milliseconds("OTEL_BSP_SCHEDULE_DELAY", 5000),
        )
        if not insecure:
            settings.tls()  # raises
        return settings

    def tls(self) -> ssl.SSLContext:
        """Reads the certificates. Raises ValueError if they cannot be used."""
        try:
            context = ssl.create_default_context(cafile=self.certificate)
        except OSError as error:  # an SSLError is one
            raise ValueError(
                f"OTEL_EXPORTER_OTLP_CERTIFICATE is '{self.certificate}', which cannot be read as "
                f"trusted certificates: {error}; it must be a PEM file"
            ) from error
        if self.client_certificate is not None:
            try:
                context.load_cert_chain(self.client_certificate, self.client_key)
            except OSError as error:
                raise ValueError(
                    f"OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE is '{self.client_certificate}' and "
                    f"OTEL_EXPORTER_OTLP_CLIENT_KEY '{self.client_key}', which cannot be read as "
                    f"a certificate and its key: {error}; both must be PEM files"
                ) from error
        return context


def _endpoint(variables: _Variables, protocol: str) -> tuple[str, bool]:
    """Returns the URL or gRPC's target, and whether it is without TLS."""
    variable, value = variables.find("ENDPOINT")
    value = value or _DEFAULT_ENDPOINT[protocol]
    try:
        url = urlsplit(value)
        usable = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:  # brackets, or a port that is no number
        usable = False
    shown = re.sub(r"//.*@", "//***@", value)  # less a password
    if protocol == "grpc":
        if usable:  # the path has no meaning
            return url.netloc.rpartition("@")[2], url.scheme == "http"
        if value.startswith(("http://", "https://")):
            raise ValueError(f"{variable} is {shown!r}, must name a host, like http://host:4317")
        return value, variables.insecure()
    if not usable:
        raise ValueError(
            f"{variable} is {shown!r}, must be a URL with http:// or https:// for the protocol "
            "http/protobuf, like http://host:4318"
        )
    if not variable.startswith("OTEL_EXPORTER_OTLP_TRACES_"):
        base = url._replace(path=f"{url.path.rstrip('/')}/v1/traces", fragment="")
        return base.geturl(), url.scheme == "http"
    return value, url.scheme == "http"


def otlp_protocol(environ: Mapping[str, str]) -> str | None:
    """Returns `grpc` or `http/protobuf` if the OTEL_* variables configure an exporter, else None.

    Without a configured protocol the port decides: 4317 is registered for gRPC.
    """
    variables = _Variables(environ)
    disabled = environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    none = environ.get("OTEL_TRACES_EXPORTER", "").strip() == "none"
    if disabled or none or not variables.find("ENDPOINT")[1]:
        return None
    return variables.protocol()
