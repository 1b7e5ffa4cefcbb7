"""`python -m tests.benchmarks.export`: what the export of a batch of spans costs the sidecar.

Batches of 510 spans (170 traces of three, 700 bytes per span) go to collectors in processes of
their own, by both transports, with and without gzip and TLS, in interleaved rounds. CPU is that of
this process, all threads; a hold is the CPU that the event loop's thread spends between two of its
rounds, the longest of each batch: what a request has to wait for.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent import futures
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import grpc
import uvloop

from orch_sidecar.observability.otlp.delivery import SpanBatcher, Transport
from orch_sidecar.observability.otlp.grpc_transport import GrpcTransport
from orch_sidecar.observability.otlp.http_transport import HttpTransport
from orch_sidecar.observability.otlp.settings import ExportSettings
from orch_sidecar.observability.otlp.trace_queue import EncodedTrace
from tests.orch_sidecar.observability.otlp.certificates import certificate

TRACES: Final = 170
SPANS: Final = 3 * TRACES
BYTES_PER_SPAN: Final = 700
KINDS: Final = [
    f"{protocol} {tls} {compression}"
    for protocol in ("http/protobuf", "grpc")
    for tls in ("plain", "tls")
    for compression in ("none", "gzip")
]


def trace(rng: random.Random) -> bytes:
    """Bytes of a trace as compressible as spans are: ids, and texts that repeat."""
    ids = rng.randbytes(3 * 40).hex().encode()
    texts = b"measurement_type batched_online orch.pool cloud gen_ai.request.model tiny "
    return (ids + texts * 40)[: 3 * BYTES_PER_SPAN]


def collect_http(files: tuple[str, str] | None) -> None:
    """Reads requests and answers them, at the least cost for this machine."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):  # the connection ends
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = head.split(b"content-length:")[1].split(b"\r\n")[0]
                await reader.readexactly(int(length))
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    async def listen() -> None:
        context = None
        if files is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*files)
        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context, limit=2**22)
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()

    uvloop.run(listen())


def collect_grpc(files: tuple[str, str] | None) -> None:
    class Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, details: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(lambda request, context: b"")

    server = grpc.server(futures.ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((Handler(),))
    if files is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        cert, key = (Path(file).read_bytes() for file in files)
        credentials = grpc.ssl_server_credentials([(key, cert)])
        port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    print(port, flush=True)
    server.wait_for_termination()


class Measured:
    """One way to a collector, and what batches cost on it."""

    def __init__(self, kind: str, port: int, certificate: Path) -> None:
        protocol, tls, compression = kind.split()
        scheme = "https" if tls == "tls" else "http"
        settings = ExportSettings.from_environ(
            {
                "OTEL_EXPORTER_OTLP_ENDPOINT": f"{scheme}://127.0.0.1:{port}",
                "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
                "OTEL_EXPORTER_OTLP_COMPRESSION": compression,
                "OTEL_EXPORTER_OTLP_CERTIFICATE": str(certificate),
                "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": str(SPANS),
            }
        )
        http = protocol == "http/protobuf"
        transport: Transport = HttpTransport(settings) if http else GrpcTransport(settings)
        self.batcher = SpanBatcher(settings, transport, b"".join)
        self.cpu_ms: list[float] = []
        self.holds_ms: list[float] = []

    async def export(self, traces: list[bytes]) -> None:
        wanted = self.batcher.counts.exported + SPANS
        for each in traces:
            self.batcher.queue.offer(EncodedTrace(each), 3)
        while self.batcher.counts.exported < wanted:  # noqa: ASYNC110 - nothing else tells
            await asyncio.sleep(0.005)

    async def round(self, traces: list[bytes], batches: int) -> None:
        await self.export(traces)
        begin = time.process_time()
        for _ in range(batches):
            await self.export(traces)
        self.cpu_ms.append((time.process_time() - begin) / batches * 1e3)
        for _ in range(batches // 4):
            longest = [0.0]
            spinning = asyncio.create_task(spin(longest))
            await self.export(traces)
            spinning.cancel()
            await asyncio.wait([spinning])
            self.holds_ms.append(longest[0] * 1e3)


async def spin(longest: list[float]) -> None:
    """Notes the longest time of CPU between two rounds of the event loop."""
    last = time.thread_time()
    while True:
        await asyncio.sleep(0)
        now = time.thread_time()
        longest[0] = max(longest[0], now - last)
        last = now


async def measure(ports: dict[str, int], certificate: Path, rounds: int, batches: int) -> None:
    rng = random.Random(1)
    traces = [trace(rng) for _ in range(TRACES)]
    ways = {kind: Measured(kind, ports[kind.rpartition(" ")[0]], certificate) for kind in KINDS}
    for _ in range(rounds):
        for way in ways.values():
            await way.round(traces, batches)
    print(f"{'':26} CPU ms per batch (least, most)   us per trace   hold ms p50, p95, longest")
    for kind, way in ways.items():
        cpu, holds = statistics.median(way.cpu_ms), sorted(way.holds_ms)
        print(
            f"{kind:26} {cpu:8.2f} ({min(way.cpu_ms):.2f}, {max(way.cpu_ms):.2f})"
            f" {cpu * 1e3 / TRACES:20.1f} {statistics.median(holds):14.2f}, "
            f"{holds[int(len(holds) * 0.95)]:.2f}, {holds[-1]:.2f}"
        )
        assert not sum(way.batcher.counts.dropped.values())
        await way.batcher.close(5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=40, help="per round")
    parser.add_argument("--collect", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.collect:
        protocol, *files = options.collect
        collect = collect_grpc if protocol == "grpc" else collect_http
        collect((files[0], files[1]) if files else None)
        return
    with tempfile.TemporaryDirectory() as folder:
        own = certificate(Path(folder), "collector")
        collectors, ports = [], {}
        try:
            for kind in dict.fromkeys(kind.rpartition(" ")[0] for kind in KINDS):
                protocol, tls = kind.split()
                command = [sys.executable, "-m", __spec__.name, "--collect", protocol]
                files = [str(own.cert_file), str(own.key_file)] if tls == "tls" else []
                child = subprocess.Popen([*command, *files], stdout=subprocess.PIPE, text=True)
                collectors.append(child)
                assert child.stdout is not None
                ports[kind] = int(child.stdout.readline())
            uvloop.run(measure(ports, own.cert_file, options.rounds, options.batches))
        finally:
            for child in collectors:
                child.kill()
                child.communicate()


if __name__ == "__main__":
    main()
