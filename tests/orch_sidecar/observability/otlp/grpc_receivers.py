"""Collectors that misbehave over gRPC."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc

from orch_sidecar.observability.otlp.grpc_transport import METHOD


@dataclass(slots=True)
class GrpcReceiver:
    """Calls its script's functions with each call's context, one after the other."""

    script: list[Callable[[Any], bytes]]
    port: int = 0
    requests: list[tuple[dict[str, Any], bytes]] = field(default_factory=list)

    def export(self, request: bytes, context: Any) -> bytes:
        self.requests.append((dict(context.invocation_metadata()), request))
        behave = self.script[0] if len(self.script) == 1 else self.script.pop(0)
        return behave(context)


@contextmanager
def grpc_receiver(
    *script: Callable[[Any], bytes], credentials: Any = None, method: str = METHOD
) -> Iterator[GrpcReceiver]:
    receiver = GrpcReceiver(list(script))

    class Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, details: Any) -> Any:
            if details.method != method:
                return None
            return grpc.unary_unary_rpc_method_handler(receiver.export)

    server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
    server.add_generic_rpc_handlers((Handler(),))
    address = "127.0.0.1:0"
    receiver.port = (
        server.add_insecure_port(address)
        if credentials is None
        else server.add_secure_port(address, credentials)
    )
    server.start()
    try:
        yield receiver
    finally:
        server.stop(None).wait()


def returning(body: bytes = b"") -> Callable[[Any], bytes]:
    return lambda context: body


def failing(code: Any, text: str = "", *trailing: tuple[str, bytes]) -> Callable[[Any], bytes]:
    """Fails with this code and these fields at the end."""

    def behave(context: Any) -> bytes:
        context.set_trailing_metadata(trailing)
        context.set_code(code)
        context.set_details(text)
        return b""

    return behave
