"""The protocol between a sidecar and its upstream: leases, and the events of the state stream.

    GET    /v1/capabilities/stream?instance=I&api_version=V[&changes_every_ms=T]
                                               server-sent events: STATE (the whole state) first,
                                               then CHANGE and HEARTBEAT (the fields that changed),
                                               ENDED (leases that have ended) and OFFER (slots
                                               that are booked for this instance)
    DELETE /v1/capabilities/leases/{lease}     spends a lease: {"ended": true} states that no
                                               request carries it and none ever will
    PUT    /v1/capabilities/claims/{instance}  what the sidecar waits for, see `ClaimCall`

A request carries its lease in the header `X-Orch-Lease`: `<instance>.<random>.<cost>`, that is the
sidecar that granted it, 128 random bits that make it unguessable, and its sequences. An engine
that has no slots for it rejects it before its body is read, with the error type NO_SLOT, and takes
that for a claim.

Beside it `X-Orch-Adapter` has the percent-encoded name of its LoRA adapter; it is absent for the
base model, and from a sidecar that knows of no adapters. An engine runs sequences of at most so
many adapters at once (`max_loras`): it rejects a request of another one in the same way, with the
error type NO_ADAPTER, and keeps its slot free.

Pure, without vLLM: the plugin and the sidecar both import it.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

# Of what sidecars and engines report and accept. Another minor number is compatible: a higher one
# tells the other side that more is accepted (`knows_idle`). So the minor number rises with what may
# only be sent to a party that knows it, the major one with what an older party would misread. A
# field that is reported, and that others may ignore, raises neither.
API_VERSION: Final = "1.4.0"
_IDLE_SINCE: Final = 1, 4  # the class of idle requests

STATE: Final = "state"
CHANGE: Final = "change"
HEARTBEAT: Final = "heartbeat"
ENDED: Final = "ended"
OFFER: Final = "offer"

CLAIMS_PATH: Final = "/v1/capabilities/claims/"
ADAPTER_HEADER: Final = "X-Orch-Adapter"

# The types of the errors with which an engine rejects a request for want of slots, or of room for
# its adapter.
NO_SLOT: Final = "no_slot"
NO_ADAPTER: Final = "no_adapter"
# That of one by which it knows that the engine has started no part of a request.
ENGINE_GONE: Final = "engine_gone"

# The least time between two CHANGE events to one reader: of a single sidecar, no more often than
# the engine steps, within these bounds.
CHANGES_EVERY_S: Final = 0.020
MAX_STEP_S: Final = 0.100
# Where several sidecars read an engine's state, each dispatches by what the others have. So long
# for each of the others: all events together stay below a thousand a second, however many read.
SHARED_CHANGES_EVERY_S: Final = 0.002
HEARTBEAT_EVERY_S: Final = 1.0
# By this query parameter a reader of many streams asks for fewer CHANGE events of each.
CHANGES_EVERY_MS: Final = "changes_every_ms"
# A stream without a valid event for this long is stale, and its reader reconnects.
STALE_AFTER_S: Final = 3.0

# A request that was in a socket's buffer when its lease was spent arrives within a second or so:
# this many leases last longer than that at any rate of requests, in less than 10 MiB. So does a
# quarter of them: one sidecar that spends more has its own be forgotten, not those of others.
MAX_SPENT_LEASES: Final = 65_536

LEASE_PATTERN: Final = r"^([0-9a-f]{16})\.[0-9a-f]{32}\.([1-9][0-9]{0,6})\Z"
_LEASE: Final = re.compile(LEASE_PATTERN)


# Slots that an engine offers a sidecar are booked for so long: it takes them within a few
# milliseconds and a round trip, on a busy machine within some tens.
OFFER_S: Final = 0.1
# At most, where the round trip takes longer.
MAX_OFFER_S: Final = 0.5

# A claim that its sidecar does not repeat for that long ends: it repeats one each second, and a
# call that is lost delays the next one by a little more than 3 s.
CLAIM_S: Final = 5.0


# Requests of adapters in use may join those that run for so long while another adapter waits: a
# fraction of what users wait for a first token, and several times what an answer takes, so that
# adapters which alternate do so in batches.
PASSED_S: Final = 2.0

# A sidecar claims at most so many times the slots of the engine, and so many LoRA adapters.
MAX_CLAIMED_SHARE: Final = 2
MAX_ADAPTERS: Final = 16
_NAME_CHARACTERS: Final = 512


class Claim(NamedTuple):
    """What a sidecar waits for: `cost` slots for the request that is next by its policy, and `more`
    that those behind it could take. `urgent`: they are interactive, or bulk work that is owed
    slots."""

    cost: int
    urgent: bool
    more: int = 0

    @property
    def slots(self) -> int:
        """All slots that are claimed."""
        return self.cost + self.more

    def reduced_by(self, slots: int) -> Claim | None:
        """Returns what is left to claim when so many slots were offered; None: nothing."""
        left = self.slots - slots
        if left <= 0:
            return None
        cost = min(self.cost, left)
        return Claim(cost, self.urgent, left - cost)


class ClaimCall(NamedTuple):
    """A call of a sidecar: what it claims beyond the offers up to number `taken`, the last that it
    has heard of, and how many slots of these it gives back. `number`: later calls have higher ones;
    0: a sidecar of API version 1.1. `waits`: more is queued than it claims, for some other reason.
    `adapters`: LoRA adapters that its requests wait for, and for no slots; the first MAX_ADAPTERS.
    """

    claim: Claim | None
    taken: int = 0
    unused: int = 0
    number: int = 0
    waits: bool = False
    adapters: tuple[str, ...] = ()


# Of a lease: the instance, and 7 of the 32 random digits.
SHOWN_CHARACTERS: Final = 24


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


def short_lease(lease: str) -> str:
    """Returns the part of a lease that identifies it, without the part that is secret."""
    return lease[:SHOWN_CHARACTERS]


def require_lease(text: str) -> None:
    """Raises ValueError if `text` is not a lease."""
    if _LEASE.fullmatch(text) is None:
        raise ValueError(
            f"{text[:80]!r} is not a lease: it must be <instance>.<random>.<cost>, that is 16 and "
            "32 lower-case hexadecimal digits and a number of sequences from 1"
        )


def parse_claim(body: bytes, slots_total: int) -> ClaimCall:
    """Parses the body of a ClaimCall: a JSON object of "cost" (0: it claims nothing) and "urgent",
    and with 0, false and [] where they are missing "more", "taken", "unused", "number", "waits" and
    "adapters".

    Raises ValueError, whose text names the value and the rule.
    """
    try:
        given = json.loads(body)
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict):
        raise ValueError('the body must be a JSON object of "cost" and "urgent"')
    most = {"cost": slots_total, "more": MAX_CLAIMED_SHARE * slots_total, "unused": slots_total}
    numbers: dict[str, Any] = {"cost": given.get("cost")}
    numbers |= {name: given.get(name, 0) for name in ("more", "taken", "unused", "number")}
    for name, value in numbers.items():
        if type(value) is not int or not 0 <= value <= most.get(name, value):
            rule = f"from 0 to {most[name]}" if name in most else "from 0"
            raise ValueError(f"{name} is {value!r:.80}: it must be an integer {rule}")
    urgent: Any = given.get("urgent")
    waits: Any = given.get("waits", False)
    for name, value in (("urgent", urgent), ("waits", waits)):
        if type(value) is not bool:
            raise ValueError(f"{name} is {value!r:.80}: it must be true or false")
    adapters: Any = given.get("adapters", [])
    if (
        not isinstance(adapters, list)
        or len(adapters) > MAX_ADAPTERS
        or not all(isinstance(each, str) and 0 < len(each) <= _NAME_CHARACTERS for each in adapters)
    ):
        rule = f"it must be a list of at most {MAX_ADAPTERS} names, of 1 to {_NAME_CHARACTERS}"
        raise ValueError(f"adapters is {adapters!r:.80}: {rule} characters")
    cost, more = numbers.pop("cost"), numbers.pop("more")
    claim = Claim(cost, urgent, more) if cost else None
    return ClaimCall(claim, **numbers, waits=waits, adapters=tuple(adapters))


def claim_body(call: ClaimCall) -> bytes:
    """Encodes a call."""
    claim = call.claim or Claim(0, False)
    fields = call._asdict()
    del fields["claim"]
    return json.dumps(claim._asdict() | fields).encode()


def encoded_adapter(adapter: str) -> str:
    """Returns the name of an adapter as the value of its header."""
    return quote(adapter, safe="")


def parse_adapter(value: str) -> str | None:
    """Returns the name in a header's value; None for an empty one."""
    return unquote(value) or None


class SpentLeases:
    """The leases that were spent last, so that a request which carries one is rejected."""

    def __init__(self, most: int = MAX_SPENT_LEASES) -> None:
        self._most = most
        self._count = 0
        # By instance; the one that has spent none for the longest is first.
        self._leases: OrderedDict[str, OrderedDict[str, None]] = OrderedDict()

    def __contains__(self, lease: str) -> bool:
        return lease in self._leases.get(lease.partition(".")[0], ())

    def __len__(self) -> int:
        return self._count

    def add(self, lease: str) -> None:
        """Adds a lease. Beyond the limit forgets the oldest of its instance if that has more than a
        quarter, else of the first instance."""
        instance = lease.partition(".")[0]
        own = self._leases.setdefault(instance, OrderedDict())
        self._leases.move_to_end(instance)
        self._count += lease not in own
        own[lease] = None
        if self._count <= self._most:
            return
        if len(own) <= max(1, self._most // 4):
            instance, own = next(iter(self._leases.items()))
        own.popitem(last=False)
        self._count -= 1
        if not own:
            del self._leases[instance]


def incompatible(version: str) -> str | None:
    """Returns why a party of another API version cannot be understood; None if it can.

    `version`: empty for a party that names none, which is older than versions are exchanged.
    """
    major = API_VERSION.partition(".")[0]
    if not version or version.partition(".")[0] == major:
        return None
    return (
        f"API version {version[:40]!r} is not compatible with {API_VERSION!r}: install the same "
        "release of orch-sidecar on both sides"
    )


def knows_idle(version: str) -> bool:
    """Whether a sidecar of this API version serves idle requests; `version`: empty if unknown."""
    numbers = version.split(".")[:2]
    return (
        len(numbers) == 2
        and all(map(str.isdecimal, numbers))
        and tuple(map(int, numbers)) >= _IDLE_SINCE
    )


def changes_every_s(sidecars: int, step_s: float = 0.0) -> float:
    """Returns the least time between two CHANGE events to one of so many sidecars.

    `step_s`: the seconds of a step of the current batch, 0 if unknown.
    """
    if sidecars > 1:
        return min(HEARTBEAT_EVERY_S, SHARED_CHANGES_EVERY_S * (sidecars - 1))
    return max(CHANGES_EVERY_S, min(step_s, MAX_STEP_S))


def parse_changes_every_s(text: str) -> float:
    """Parses the milliseconds that a reader asks for; returns seconds, 0 for an empty text.

    Raises ValueError, whose text names the value and the rule.
    """
    if not text:
        return 0.0
    most = round(1000 * HEARTBEAT_EVERY_S)
    if re.fullmatch(r"[0-9]{1,4}", text) is None or int(text) > most:
        rule = f"it must be an integer from 0 to {most}"
        raise ValueError(f"{CHANGES_EVERY_MS} is {text[:40]!r}: {rule}")
    return int(text) / 1000


def event(name: str, data: Mapping[str, Any]) -> bytes:
    """Encodes a server-sent event."""
    return f"event: {name}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


def timestamp(at_s: float) -> str:
    """Formats a Unix time as RFC 3339, in UTC and to the millisecond."""
    text = datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


# What an engine reports as `supported_workloads`, by the routes that it has: vLLM has those of its
# tasks.
WORKLOADS_BY_PATH: Final = {
    "/v1/completions": "completion",
    "/v1/chat/completions": "chat",
    "/v1/responses": "responses",
    "/v1/messages": "messages",
    "/v1/embeddings": "embedding",
    "/pooling": "pooling",
    "/classify": "classification",
    "/score": "score",
    "/rerank": "rerank",
    "/v1/audio/transcriptions": "transcription",
    "/v1/audio/translations": "translation",
    "/v1/realtime": "realtime",
}
# Those that read recordings, and those of engines that generate no tokens.
RECORDINGS: Final = frozenset({"transcription", "translation"})
POOLING: Final = frozenset({"embedding", "pooling", "score", "rerank", "classification"})


def workloads_of(paths: Iterable[str]) -> tuple[str, ...]:
    """Returns the workloads for these paths, always in the same order."""
    served = set(paths)
    return tuple(workload for path, workload in WORKLOADS_BY_PATH.items() if path in served)
