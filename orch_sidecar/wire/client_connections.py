"""The connections of clients: how many there may be, and which of them are of no use.

A process has a limit of descriptors, and a client that only connects costs it one. So there is a
limit of connections below that, and idle ones make room first. Where reading is paused, because
requests were sent ahead, the end of a connection does not show by itself: now and then all of these
are asked for it in one call. A client that does not read its answers would keep its connection for
ever. Knows nothing of HTTP.
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
from collections.abc import Iterable
from typing import Final, Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

logger = logging.getLogger("orch.sidecar")

# Descriptors for all that is no client's and no engine's for a client: listeners, state streams,
# look-ups, files, the collector of traces.
RESERVED_DESCRIPTORS: Final = 128
LOG_EVERY_S: Final = 10.0
# After all were found busy, new ones are refused for so long without another look at each.
_BUSY_FOR_S: Final = 0.1

# With so much unread the end may be behind what the client's system cannot send: a receive buffer
# of Linux takes 64 KiB at first, and grows only as it is read.
_HIDES_THE_END_BYTES: Final = 32_768

# The client has ended its side, whether all that it sent has been read or not. Where it is not
# known (outside of Linux) a reset is noticed, and an orderly end is not.
_LEFT: Final = select.POLLRDHUP if sys.platform == "linux" else select.POLLHUP


class Connection(Protocol):
    """A client's connection."""

    transport: asyncio.Transport | None

    @property
    def idle(self) -> bool:
        """Whether it serves no request and has no answer on its way."""

    @property
    def reads_ahead(self) -> bool:
        """Whether what comes now is behind the request that is being served."""

    @property
    def unsent_bytes(self) -> int:
        """Of answers that the client has yet to take, and that no relay writes."""

    def force_close(self) -> None:
        """Ends it, once the client has what was written."""

    def abort(self) -> None:
        """Ends it at once."""

    def drop_what_follows(self) -> None:
        """Serves nothing after this request: what the client sends is read and dropped."""


def raise_descriptor_limit() -> None:
    """Lets this process have as many descriptors as its hard limit allows.

    The soft limit, often 1024, is there for programs that use `select`; event loops do not.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def most_connections(wanted: int | None) -> int:
    """The limit: `wanted` at most, and half of the descriptors, for each may need an engine's."""
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if descriptors == resource.RLIM_INFINITY:
        descriptors = sys.maxsize
    most = max(1, (descriptors - RESERVED_DESCRIPTORS) // 2)
    if wanted is not None and wanted > most:
        logger.warning(
            "max_connections is %d, the limit of %d descriptors allows %d",
            wanted,
            descriptors,
            most,
        )
    return most if wanted is None else min(wanted, most)


class ClientConnections:
    """Those of one listener that are open. Lives on one event loop."""

    def __init__(self, limit: int, whose: str) -> None:
        """`whose`: for the log."""
        self.limit = limit
        self._whose = whose
        self.closed_idle = self.closed_stalled = self.refused = 0
        self._open: OrderedDict[Connection, None] = OrderedDict()
        # What they had not taken at the last look, and for how many looks it has been so much.
        self._behind: dict[Connection, tuple[int, int]] = {}
        self._loop = asyncio.get_running_loop()
        self._all_busy_until = self._log_at = float("-inf")
        self._logged = (0, 0)

    def __len__(self) -> int:
        return len(self._open)

    def enter(self, connection: Connection) -> bool:
        """A client has connected. False: too many have."""
        if len(self._open) >= self.limit:
            made = self._make_room()
            self.refused += not made
            self._log()
            if not made:
                return False
        self._open[connection] = None
        return True

    def leave(self, connection: Connection) -> None:
        """Its connection is gone. Does nothing for one that was refused."""
        self._open.pop(connection, None)

    def end_abandoned(self) -> None:
        """Ends those that their clients have left without its being noticed.

        Where so much was sent ahead that the end could not come, what follows is given up, so that
        it will be noticed.
        """
        unread: dict[int, tuple[Connection, asyncio.Transport]] = {}
        poll = select.poll()
        for connection in self._open:
            transport = connection.transport
            if transport is None or transport.is_closing() or transport.is_reading():
                continue
            descriptor = transport.get_extra_info("socket").fileno()
            unread[descriptor] = connection, transport
            poll.register(descriptor, _LEFT)
        left = {descriptor for descriptor, _ in poll.poll(0)} if unread else ()
        for descriptor, (connection, transport) in unread.items():
            if descriptor in left:
                transport.abort()
            elif connection.reads_ahead and _unread_bytes(descriptor) >= _HIDES_THE_END_BYTES:
                connection.drop_what_follows()

    def end_stalled(self, every_s: float, stall_s: float) -> None:
        """Ends those whose clients have read nothing of an answer for `stall_s` seconds.

        To be called every `every_s` seconds. What relays write is watched with the relays.
        """
        behind: dict[Connection, tuple[int, int]] = {}
        for connection in self._open:
            unsent_bytes = connection.unsent_bytes
            if unsent_bytes:
                before, looks = self._behind.get(connection, (0, 0))
                behind[connection] = unsent_bytes, looks + 1 if unsent_bytes == before else 0
        self._behind = behind
        for connection, (_, looks) in behind.items():
            if looks * every_s > stall_s:
                self.closed_stalled += 1
                connection.abort()

    def collect(self) -> Iterable[Metric]:
        """For Prometheus."""
        is_open = GaugeMetricFamily("orch_connections", "Connections of clients that are open.")
        is_open.add_metric((), len(self._open))
        limit = GaugeMetricFamily("orch_connections_limit", "Connections of clients at most.")
        limit.add_metric((), self.limit)
        closed = CounterMetricFamily(
            "orch_connections_closed",
            "Connections that were closed because of the limit (idle ones, and new ones when none "
            "was idle), and those of clients that read nothing of an answer.",
            labels=("reason",),
        )
        closed.add_metric(("idle",), self.closed_idle)
        closed.add_metric(("refused",), self.refused)
        closed.add_metric(("stalled",), self.closed_stalled)
        return is_open, limit, closed

    def _make_room(self) -> bool:
        """Closes the first one that is idle, if there is one."""
        now = self._loop.time()
        if now < self._all_busy_until:
            return False
        for _ in range(len(self._open)):
            first = next(iter(self._open))
            if first.idle:
                del self._open[first]
                self.closed_idle += 1
                first.force_close()
                return True
            self._open.move_to_end(first)  # next time the others are looked at before it
        self._all_busy_until = now + _BUSY_FOR_S
        return False

    def _log(self) -> None:
        now = self._loop.time()
        if now < self._log_at:
            return
        self._log_at = now + LOG_EVERY_S
        idle, refused = self._logged
        logger.warning(
            "all %d connections of %s are taken: closed %d that were idle, refused %d new ones",
            self.limit,
            self._whose,
            self.closed_idle - idle,
            self.refused - refused,
        )
        self._logged = self.closed_idle, self.refused


def _unread_bytes(descriptor: int) -> int:
    """What has come on a socket and was not read."""
    answer = fcntl.ioctl(descriptor, termios.FIONREAD, b"\0" * 4)
    return int.from_bytes(answer, sys.byteorder)
