"""Limits the number of client connections, closes abandoned ones, and ends responses that stall.

Each connection costs the process a file descriptor. At the limit, which is below the process's
own, idle connections are closed for new ones. While reading is paused because of pipelined
requests, nothing shows that a client has disconnected: all such sockets are polled periodically.
A client that does not read its responses would keep its connection forever, and so would one of an
engine that says nothing. Independent of HTTP.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import resource
import select
import sys
import termios
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.wire.turn import Turn

logger = logging.getLogger("orch.sidecar")

# Idle connections, and those whose request head does not arrive, are closed after this time.
KEEP_ALIVE_S: Final = 75.0
# File descriptors for everything but clients and their engine connections: listeners, state
# streams, DNS, files, trace export.
RESERVED_DESCRIPTORS: Final = 128
# With the limit of open files that Linux begins with, 1024.
_USUAL_CONNECTIONS: Final = 448
LOG_EVERY_S: Final = 10.0
# Connections, or responses, that are checked before the event loop runs again: a few tenths of a
# millisecond.
CHECKED_PER_TURN: Final = 256
# After a scan found no idle connection, new ones are refused without another scan for this time.
_RESCAN_AFTER_S: Final = 0.1

# With more unread bytes, the client's FIN may be stuck behind data that its system cannot send: a
# receive buffer of Linux takes 64 KiB at first, and grows only as it is read.
_FIN_HIDDEN_BYTES: Final = 32_768

# The client has closed its side, even if data remains unread. Outside of Linux this detects a
# reset, but not an orderly close.
_CLOSED_BY_CLIENT: Final = select.POLLRDHUP if sys.platform == "linux" else select.POLLHUP


# The seconds for which an engine may be silent, as of now.
SilenceLimit = Callable[[], float]
# The progress of a response at the last check, and at how many in a row it was the same.
_Seen = tuple[tuple[int, int], int]


class ActiveResponse(Protocol):
    """A response in progress, as its client's connection and the stall watchdog see it.

    `silence_limit_s`: returns the seconds for which its engine may be silent; None: it waits for an
    engine, or has ended.
    """

    silence_limit_s: SilenceLimit | None
    paused: bool  # the client's transport is full
    keep_alive: bool  # the client's connection may serve another request afterwards

    @property
    def progress(self) -> tuple[int, int]:
        """Changes whenever bytes arrive from the engine or drain to a slow client."""

    def pause(self) -> None:
        """Stops writing: the client's transport is full."""

    def resume(self) -> None:
        """Continues writing: the client's transport accepts bytes again."""

    def abort_client(self) -> None:
        """Resets the client's connection."""

    def fail(self, refusal: Refusal) -> None:
        """Ends the response with an error, as visibly as its state permits."""


class Connection(Protocol):
    """A client connection."""

    transport: asyncio.Transport | None
    response: ActiveResponse | None

    @property
    def is_idle(self) -> bool:
        """Whether it serves no request and has nothing left to send."""

    @property
    def reads_ahead(self) -> bool:
        """Whether bytes that arrive now follow the request being served."""

    @property
    def unsent_bytes(self) -> int:
        """Bytes of finished responses that the client has not read yet."""

    def force_close(self) -> None:
        """Closes the connection once everything written has been sent."""

    def abort(self) -> None:
        """Closes the connection immediately."""

    def close_after_current(self) -> None:
        """Closes after the current request: whatever else the client sends is discarded."""

    def refuse_upload(self, refusal: Refusal) -> None:
        """Refuses the request whose body is arriving; nothing if none is."""


def raise_descriptor_limit() -> None:
    """Raises this process's soft limit of file descriptors to its hard limit.

    The soft limit, often 1024, protects programs that use `select`; event loops do not.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def connection_limit(configured: int | None) -> int:
    """Returns the limit of client connections; logs a warning if it is below what is `configured`,
    or usual.

    At most half of the descriptors: each client connection may need one to an engine.
    """
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if descriptors == resource.RLIM_INFINITY:
        descriptors = sys.maxsize
    allowed = max(1, (descriptors - RESERVED_DESCRIPTORS) // 2)
    wanted = _USUAL_CONNECTIONS if configured is None else configured
    if wanted > allowed:
        logger.warning(
            "the limit of open files is %d, which leaves %d client connections of %d; raise it "
            "(ulimit -n, LimitNOFILE) for more",
            descriptors,
            allowed,
            wanted,
        )
    return allowed if configured is None else min(configured, allowed)


class ClientConnections:
    """The open connections of one listener. For one event loop."""

    def __init__(self, limit: int, name: str) -> None:
        """`name`: of the clients, for the log."""
        self.limit = limit
        self.turn = Turn()
        self._name = name
        self.closed_idle = self.closed_stalled = self.refused = 0
        self._open: OrderedDict[Connection, None] = OrderedDict()
        # The unsent bytes at the last check, and at how many checks they have not changed.
        self._unsent: dict[Connection, tuple[int, int]] = {}
        self._loop = asyncio.get_running_loop()
        self._all_busy_until = self._log_at = float("-inf")
        self._logged = (0, 0)

    def __len__(self) -> int:
        return len(self._open)

    def enter(self, connection: Connection) -> bool:
        """Registers a new connection. Returns False if it must be refused: the limit is reached."""
        if len(self._open) >= self.limit:
            made = self._make_room()
            self.refused += not made
            self._log()
            if not made:
                return False
        self._open[connection] = None
        return True

    def leave(self, connection: Connection) -> None:
        """Removes a closed connection; ignores one that was refused."""
        self._open.pop(connection, None)

    def responses(self) -> Iterator[ActiveResponse]:
        """Returns the responses in progress that are not waiting for an engine."""
        for connection in self._open:
            response = connection.response
            if response is not None and response.silence_limit_s is not None:
                yield response

    def refuse_uploads(self, refusal: Refusal) -> None:
        """Refuses the requests whose bodies are arriving."""
        for connection in self._open:
            connection.refuse_upload(refusal)

    def check(self, every_s: float, stall_s: float) -> Iterator[None]:
        """Closes abandoned connections, and those whose clients have read nothing for `stall_s`.

        Must be called every `every_s` seconds. Yields now and then, for the event loop: thousands
        of connections take milliseconds.
        """
        connections, unsent = list(self._open), self._unsent
        self._unsent = {}
        for start in range(0, len(connections), CHECKED_PER_TURN):
            part = connections[start : start + CHECKED_PER_TURN]
            self._close_abandoned(part)
            self._close_stalled(part, unsent, stall_s / every_s)
            yield

    def _close_abandoned(self, connections: list[Connection]) -> None:
        """Closes connections whose clients have disconnected while reading was paused.

        Where a FIN may be stuck behind pipelined requests, the connection stops serving these, so
        that the FIN can arrive.
        """
        paused: dict[int, tuple[Connection, asyncio.Transport]] = {}
        poll = select.poll()
        for connection in connections:
            transport = connection.transport
            if transport is None or transport.is_closing() or transport.is_reading():
                continue
            descriptor = transport.get_extra_info("socket").fileno()
            paused[descriptor] = connection, transport
            poll.register(descriptor, _CLOSED_BY_CLIENT)
        closed = {descriptor for descriptor, _ in poll.poll(0)} if paused else ()
        for descriptor, (connection, transport) in paused.items():
            if descriptor in closed:
                transport.abort()
            elif connection.reads_ahead and _unread_bytes(descriptor) >= _FIN_HIDDEN_BYTES:
                connection.close_after_current()

    def _close_stalled(
        self,
        connections: list[Connection],
        earlier: dict[Connection, tuple[int, int]],
        most_checks: float,
    ) -> None:
        """Closes connections whose clients have read nothing of a response at so many checks.

        `earlier`: what was unsent at the check before. The stall watchdog covers responses in
        progress.
        """
        for connection in connections:
            unsent_bytes = connection.unsent_bytes
            if unsent_bytes:
                before, checks = earlier.get(connection, (0, 0))
                checks = checks + 1 if unsent_bytes == before else 0
                self._unsent[connection] = unsent_bytes, checks
                if checks > most_checks:
                    self.closed_stalled += 1
                    connection.abort()

    def collect(self) -> Iterable[Metric]:
        """Returns the metrics, for a Prometheus registry."""
        current = GaugeMetricFamily("orch_connections", "Open client connections.")
        current.add_metric((), len(self._open))
        limit = GaugeMetricFamily("orch_connections_limit", "Limit of open client connections.")
        limit.add_metric((), self.limit)
        closed = CounterMetricFamily(
            "orch_connections_closed",
            "Connections closed because of the limit (idle ones, and new ones if none was idle), "
            "or because the client read nothing of a response.",
            labels=("reason",),
        )
        closed.add_metric(("idle",), self.closed_idle)
        closed.add_metric(("refused",), self.refused)
        closed.add_metric(("stalled",), self.closed_stalled)
        return current, limit, closed

    def _make_room(self) -> bool:
        """Closes an idle connection. Returns False if there is none."""
        now = self._loop.time()
        if now < self._all_busy_until:
            return False
        for _ in range(len(self._open)):
            first = next(iter(self._open))
            if first.is_idle:
                del self._open[first]
                self.closed_idle += 1
                first.force_close()
                return True
            self._open.move_to_end(first)  # the next scan begins with the others
        self._all_busy_until = now + _RESCAN_AFTER_S
        return False

    def _log(self) -> None:
        now = self._loop.time()
        if now < self._log_at:
            return
        self._log_at = now + LOG_EVERY_S
        idle, refused = self._logged
        logger.warning(
            "the limit of %d connections of %s is reached: closed %d idle, refused %d new ones",
            self.limit,
            self._name,
            self.closed_idle - idle,
            self.refused - refused,
        )
        self._logged = self.closed_idle, self.refused


class StallWatchdog:
    """Aborts responses whose engine is silent, or whose client does not read: those of the
    listeners' connections, and the parts of divided ones. Has no clock of its own.

    How long an engine may be silent is a setting, or is derived from its state: an engine that
    reports may be reading long prompts; one that has stopped reporting counts as hung after a
    multiple of the time of its steps.
    """

    def __init__(self, engine_silence_s: float | None, client_stall_s: float) -> None:
        self._engine_silence_s = engine_silence_s
        self._client_stall_s = client_stall_s
        self._listeners: list[ClientConnections] = []
        self._parts: dict[ActiveResponse, None] = {}
        self._seen: dict[ActiveResponse, _Seen] = {}

    def configure(self, engine_silence_s: float | None, client_stall_s: float) -> None:
        """Applies other limits, to responses in progress, too."""
        self._engine_silence_s = engine_silence_s
        self._client_stall_s = client_stall_s

    def watch(self, listener: ClientConnections) -> None:
        """Watches the responses of these connections from now on."""
        self._listeners.append(listener)

    def responses(self) -> list[ActiveResponse]:
        """Returns the responses that are watched now."""
        return [each for of in self._listeners for each in of.responses()] + [*self._parts]

    def add(self, part: ActiveResponse) -> None:
        """Watches a response that is part of another, and has no connection of its own."""
        self._parts[part] = None

    def discard(self, part: ActiveResponse) -> None:
        self._parts.pop(part, None)

    def check(self, every_s: float) -> Iterator[None]:
        """Checks all responses; to be called every `every_s` seconds.

        Yields now and then, for the event loop: thousands of responses take milliseconds.
        """
        seen, self._seen = self._seen, {}
        for number, response in enumerate(self.responses(), 1):
            try:
                self._check_one(response, seen.get(response, ((0, 0), 0)), every_s)
            # A response that cannot be ended must not keep the others from being checked.
            except Exception:
                logger.exception("a stalled response could not be ended")
            if number % CHECKED_PER_TURN == 0:
                yield

    def _check_one(self, response: ActiveResponse, before: _Seen, every_s: float) -> None:
        limit = response.silence_limit_s
        if limit is None:
            return  # it ended together with one that was checked before
        progress, (seen, idle_checks) = response.progress, before
        idle_checks = idle_checks + 1 if progress == seen else 0
        self._seen[response] = progress, idle_checks
        idle_s = idle_checks * every_s
        if response.paused and idle_s > self._client_stall_s:
            text = f"the client has read nothing for {self._client_stall_s:g} s"
            response.abort_client()
            response.fail(Refusal(Reason.CLIENT_STALLED, text))
        elif not response.paused:
            configured_s = self._engine_silence_s
            if idle_s > (limit_s := limit() if configured_s is None else configured_s):
                text = f"the engine has sent nothing for {limit_s:.3g} s"
                response.fail(Refusal(Reason.ENGINE_TIMEOUT, text))

    def end_all(self, refusal: Refusal) -> None:
        for response in self.responses():
            response.fail(refusal)


def _unread_bytes(descriptor: int) -> int:
    """Returns how many received bytes of a socket have not been read."""
    answer = fcntl.ioctl(descriptor, termios.FIONREAD, b"\0" * 4)
    return int.from_bytes(answer, sys.byteorder)


def undelivered_bytes(transport: asyncio.Transport) -> int:
    """Returns how many bytes that were written to a client its system has yet to confirm; 0 if the
    kernel has taken all of them.

    The kernel's bytes count, too: a full socket takes more only when a third of its buffer of some
    megabytes has been delivered, and until then a slow client would seem to read nothing. Outside
    of Linux it does.
    """
    unsent, connection = transport.get_write_buffer_size(), transport.get_extra_info("socket")
    if not unsent or connection is None or sys.platform != "linux" or transport.is_closing():
        return unsent
    answer = fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, b"\0" * 4)
    return unsent + int.from_bytes(answer, sys.byteorder)
