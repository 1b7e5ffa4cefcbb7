"""A response on its way from an engine to one client, without sockets."""

from __future__ import annotations

from orch_sidecar.api.endpoints import Endpoint
from orch_sidecar.proxy.client_writer import ClientWriter
from orch_sidecar.proxy.engine_response import EngineResponse
from orch_sidecar.wire.backpressure import RejectionReader
from orch_sidecar.wire.engine_connection import ConnectionPool, EngineConnection
from orch_sidecar.wire.http1 import Head, body_of, parse_head
from tests.orch_sidecar import apis
from tests.orch_sidecar.broadcasting import POOL, Transport, http_of
from tests.orch_sidecar.records import record_of


class Client(Transport):
    """A client whose transport is never full."""

    def get_write_buffer_size(self) -> int:
        return 0


class Relayed:
    """The response, its engine's connection and its client's. `engine`: the transport to it."""

    def __init__(
        self,
        api: Endpoint = apis.CHAT,
        *,
        stream: bool = True,
        http10: bool = False,
        rejection: RejectionReader | None = None,
    ) -> None:
        self.client = Client()
        self.record = record_of(endpoint=api, stream=stream)
        http = http_of(self.client, http10=http10)
        writer = self.writer = ClientWriter(http, self.record)
        connections = ConnectionPool("http://127.0.0.1:9", 1.0)
        self.response = EngineResponse(writer, connections, events=stream, rejection=rejection)
        writer.attach(self.response, POOL)
        self.connection = EngineConnection()
        self.engine = Transport()
        self.connection.connection_made(self.engine)
        self.response.start(self.connection, b"POST / HTTP/1.1\r\n\r\n")

    def sends(self, *reads: bytes) -> Relayed:
        for data in reads:
            if self.connection.receiver is not None:
                self.connection.data_received(data)
        return self

    def closes(self, error: Exception | None = None) -> Relayed:
        self.connection.connection_lost(error)
        return self

    def resets(self) -> Relayed:
        return self.closes(ConnectionResetError("reset"))

    @property
    def got(self) -> tuple[Head, bytes]:
        """Returns the head and the body that the client received, without framing."""
        parsed = parse_head(self.client.data)
        assert parsed is not None
        head, start = parsed
        return head, body_of(head, dechunk=True).feed(self.client.data[start:])
