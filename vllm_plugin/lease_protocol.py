"""The protocol between a sidecar and its upstream: leases, and the events of the state stream.

    GET    /v1/capabilities/stream?instance=I  server-sent events: STATE (the whole state) first,
                                               then CHANGE and HEARTBEAT (the fields that changed)
                                               and ENDED (leases that have ended)
    DELETE /v1/capabilities/leases/{lease}     spends a lease: {"ended": true} states that no
                                               request carries it and none ever will

A request carries its lease in the header `X-Orch-Lease`: `<instance>.<random>.<cost>`, that is the
sidecar that granted it, 128 random bits that make it unguessable, and its sequences.

Pure, without vLLM: the plugin and the sidecar both import it.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

STATE: Final = "state"
CHANGE: Final = "change"
HEARTBEAT: Final = "heartbeat"
ENDED: Final = "ended"

CHANGES_EVERY_S: Final = 0.020
HEARTBEAT_EVERY_S: Final = 1.0
# A stream without a valid event for this long is stale, and its reader reconnects.
STALE_AFTER_S: Final = 3.0

# A request that was in a socket's buffer when its lease was spent arrives within a second or so:
# this many leases last longer than that at any rate of requests, in less than 10 MiB.
SPENT_KEPT: Final = 65_536

_LEASE: Final = re.compile(r"([0-9a-f]{16})\.[0-9a-f]{32}\.([1-9][0-9]{0,6})")


class LeaseId(NamedTuple):
    """A lease as it is written: its text, the sidecar instance that granted it, its sequences."""

    text: str
    instance: str
    cost: int


def parse_lease(text: str) -> LeaseId | None:
    """Parses a lease; None if `text` is not one."""
    match = _LEASE.fullmatch(text)
    return None if match is None else LeaseId(text, match.group(1), int(match.group(2)))


def cost_of(lease: str) -> int:
    """Returns the sequences of a valid lease."""
    return int(lease.rpartition(".")[2])


def require_lease(text: str) -> None:
    """Raises ValueError if `text` is not a lease."""
    if _LEASE.fullmatch(text) is None:
        raise ValueError(
            f"{text[:80]!r} is not a lease: it must be <instance>.<random>.<cost>, that is 16 and "
            "32 lower-case hexadecimal digits and a number of sequences from 1"
        )


class SpentLeases:
    """The leases that were spent last, so that a request which carries one is rejected."""

    def __init__(self, most: int = SPENT_KEPT) -> None:
        self._most = most
        self._leases: OrderedDict[str, None] = OrderedDict()

    def __contains__(self, lease: str) -> bool:
        return lease in self._leases

    def __len__(self) -> int:
        return len(self._leases)

    def add(self, lease: str) -> None:
        """Adds a lease; forgets the oldest beyond the limit."""
        self._leases[lease] = None
        if len(self._leases) > self._most:
            self._leases.popitem(last=False)


def event(name: str, data: Mapping[str, Any]) -> bytes:
    """Encodes a server-sent event."""
    return f"event: {name}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


def timestamp(at_s: float) -> str:
    """Formats a Unix time as RFC 3339, in UTC and to the millisecond."""
    text = datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")
