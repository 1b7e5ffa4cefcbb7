"""TLS to collectors of both protocols: which servers are trusted, and which client connects."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import grpc
import pytest

from orch_sidecar.observability.otlp.delivery import Verdict
from orch_sidecar.observability.otlp.settings import ExportSettings
from tests.orch_sidecar.observability.otlp.certificates import Certificate, certificate
from tests.orch_sidecar.observability.otlp.collectors import (
    GRPC,
    HTTP,
    LONG_S,
    answer,
    grpc_receiver,
    head,
    http_receiver,
    raw,
    returning,
    transport_to,
)

# A collector with this certificate, which demands one that the second has signed of its clients.
# Yields its port.
Serve = Callable[[Certificate, Certificate | None], AbstractAsyncContextManager[int]]


class Authority:
    """Signs certificates."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.own = certificate(folder, "authority")
        self.server = certificate(folder, "server", self.own)
        self.client = certificate(folder, "client", self.own)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@asynccontextmanager
async def serve_http(own: Certificate, clients: Certificate | None) -> AsyncIterator[int]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own.cert_file, own.key_file)
    if clients is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(clients.cert_file)
    async with http_receiver(answer("200 OK"), tls=context) as receiver:
        yield receiver.port


@asynccontextmanager
async def serve_grpc(own: Certificate, clients: Certificate | None) -> AsyncIterator[int]:
    credentials = grpc.ssl_server_credentials(
        [(own.key_file.read_bytes(), own.cert_file.read_bytes())],
        None if clients is None else clients.cert_file.read_bytes(),
        require_client_auth=clients is not None,
    )
    with grpc_receiver(returning(), credentials=credentials) as receiver:
        yield receiver.port


@pytest.fixture(params=[serve_http, serve_grpc])
def serve(request: pytest.FixtureRequest) -> Serve:
    found: Serve = request.param
    return found


async def verdict(serve: Serve, port: int, /, **files: Path) -> Verdict:
    """Sends one request with these files of the environment."""
    environ = {name: str(path) for name, path in files.items()}
    protocol = HTTP if serve is serve_http else GRPC
    environ["ENDPOINT"] = f"https://127.0.0.1:{port}"
    async with transport_to(port, protocol, **environ) as transport:
        return (await transport.send(b"spans", LONG_S)).verdict


async def test_collector_with_a_trusted_certificate_gets_spans(
    serve: Serve, authority: Authority
) -> None:
    async with serve(authority.server, None) as port:
        trusted = authority.own.cert_file
        assert await verdict(serve, port, CERTIFICATE=trusted) is Verdict.DELIVERED
        precedes = {"TRACES_CERTIFICATE": trusted, "CERTIFICATE": authority.client.cert_file}
        assert await verdict(serve, port, **precedes) is Verdict.DELIVERED


async def test_collector_that_signed_itself_is_not_trusted(
    serve: Serve, authority: Authority, tmp_path: Path
) -> None:
    own = certificate(tmp_path, "own")
    async with serve(own, None) as port:
        assert await verdict(serve, port) is Verdict.RETRY
        wrong = authority.own.cert_file
        assert await verdict(serve, port, CERTIFICATE=wrong) is Verdict.RETRY
        assert await verdict(serve, port, CERTIFICATE=own.cert_file) is Verdict.DELIVERED


async def test_collector_with_the_certificate_of_another_address_is_not_trusted(
    serve: Serve, authority: Authority, tmp_path: Path
) -> None:
    other = certificate(tmp_path, "other", authority.own, address="192.0.2.1")
    async with serve(other, None) as port:
        trusted = authority.own.cert_file
        assert await verdict(serve, port, CERTIFICATE=trusted) is Verdict.RETRY


async def test_client_shows_its_certificate_whose_key_may_be_in_the_same_file(
    serve: Serve, authority: Authority, tmp_path: Path
) -> None:
    trusted, client, one = authority.own.cert_file, authority.client, tmp_path / "both.pem"
    one.write_bytes(client.key_file.read_bytes() + client.cert_file.read_bytes())
    async with serve(authority.server, authority.own) as port:
        assert await verdict(serve, port, CERTIFICATE=trusted) is Verdict.RETRY
        two = {"CLIENT_CERTIFICATE": client.cert_file, "CLIENT_KEY": client.key_file}
        for files in (two, {"CLIENT_CERTIFICATE": one}):
            assert await verdict(serve, port, CERTIFICATE=trusted, **files) is Verdict.DELIVERED


def test_key_of_another_certificate_prevents_the_start(authority: Authority) -> None:
    with pytest.raises(ValueError, match=r"CLIENT_KEY '.*authority\.key'"):
        ExportSettings.from_environ(
            {
                "OTEL_EXPORTER_OTLP_ENDPOINT": "https://collector",
                "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE": str(authority.client.cert_file),
                "OTEL_EXPORTER_OTLP_CLIENT_KEY": str(authority.own.key_file),
            }
        )


async def test_endpoint_without_tls_on_the_other_side_is_a_retry(serve: Serve) -> None:
    answer_at_once = raw(head("400 Bad Request"), reads="nothing", then="close")
    async with http_receiver(answer_at_once) as receiver:
        assert await verdict(serve, receiver.port) is Verdict.RETRY
