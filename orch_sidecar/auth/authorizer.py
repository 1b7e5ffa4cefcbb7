"""Authenticates API keys and enforces their limits; `Frontend` applies their class.

Pure: time is a parameter, seconds of a monotonic clock. Without keys all clients are served and
have no limits; on the loopback they must then call it by a name of that (`AllowedHosts`). With
keys, all paths need one, except those of probes and Prometheus: these send no keys, and the network
must restrict them. Parent sidecars need keys that say so, unless the settings trust all clients.
The operators' listener needs no key; it is on the loopback unless configured otherwise.

The key is checked before anything of the request is read; class and limit once it has been read. A
limit counts the sequences of a key that are queued or running, until the client has its answer or
has disconnected. Where requests share a generation, each of them counts. So do they against the
budgets of a key (see `budgets`).
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network
from typing import Final, Protocol

from multidict import CIMultiDict, MultiMapping

from orch_sidecar.admission.prediction.freed_slots import ReleaseRate
from orch_sidecar.api import options
from orch_sidecar.api.endpoints import ENGINE_METRICS, METRICS, PROBES, WITHOUT_KEY
from orch_sidecar.api.generation import GenerationRequest
from orch_sidecar.api.headers import AUTHORIZATION, CLASS_ALIASES, X_ORCH_CLASS, text_of
from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.auth.browsers import AllowedHosts, is_loopback, parse_address
from orch_sidecar.auth.budgets import Bucket, Budgets, Fields, Reservation
from orch_sidecar.auth.keys import (
    MAX_KEY_BYTES,
    ApiKey,
    Keys,
    key_bytes,
    without_scheme,
)
from vllm_plugin.contracts.profile import INTERACTIVE

# Spreads the retries of the clients of one key.
_JITTER: Final = 0.25

# Of a key, for a run needs two. The engine signs five times as many, for all: it knows no keys.
STATEMENTS_PER_MINUTE: Final = 60.0


class Head(Protocol):
    """What the check of a request reads of its head."""

    @property
    def headers(self) -> MultiMapping[str]: ...

    @property
    def host(self) -> bytes | None: ...

    @property
    def credential(self) -> bytes | None: ...


def _unauthorized(message: str) -> Refusal:
    return Refusal(Reason.UNAUTHORIZED, message)


_NO_KEY: Final = _unauthorized(
    "the request has no API key: send Authorization: Bearer <key>, or X-Api-Key: <key>"
)
_NO_BEARER: Final = _unauthorized(
    "the Authorization header does not contain an API key: send Authorization: Bearer <key>"
)
_TOO_LONG: Final = _unauthorized(
    f"the API key is invalid: it has more than {MAX_KEY_BYTES} bytes; check it"
)
_UNKNOWN: Final = _unauthorized("the API key is not known to this server: check it")
_KEY_REMOVED: Final = _unauthorized(
    "the API key that created this file or batch is no longer one of this server's keys"
)
_NOT_FOR_METRICS: Final = Refusal(
    Reason.FORBIDDEN, f"{ENGINE_METRICS} tells of all clients: its API key needs metrics: true"
)

NO_PARENT: Final = Refusal(
    Reason.FORBIDDEN,
    "only parent sidecars may claim slots, end leases or read the state for an instance: use a key "
    "with sidecar: true in the child's api_keys_file, or set parents: open (ORCH_PARENTS) there",
)


class Spent(Protocol):
    """What is known of a request that ended. `admitted`: None if it never had its slots. `status`:
    of the engine's response, 0 without one."""

    admitted: int | None
    status: int
    cost: int
    input_tokens: int | None
    generated_tokens: int | None


class _KeyUsage:
    """The sequences of one key that are queued or running, how fast they are released, and what is
    used of its budgets, and of the signed statements that it may ask for."""

    __slots__ = ("budgets", "release_rate", "sequences", "statements")

    def __init__(self) -> None:
        self.sequences = 0
        self.release_rate = ReleaseRate()
        self.budgets = Budgets()
        self.statements = Bucket()

    def is_idle(self, now: float) -> bool:
        """Whether it can be forgotten: nothing runs, and the budgets are full."""
        if self.sequences or not self.statements.is_full_at(now):
            return False
        return self.budgets.are_full_at(now)


class Authorizer:
    """The API keys of clients, and how many sequences each of them uses."""

    def __init__(
        self,
        keys: Keys | None,
        jitter: random.Random | None = None,
        *,
        entries: int = 1,
        host: str = "",
        allowed_hosts: Sequence[str] = (),
        gateways: Sequence[IPv4Network | IPv6Network] = (),
        parents: str = "keys",
    ) -> None:
        """`keys`: None if none are configured; then every client is served. `entries`: sidecars
        that share the clients, and so the budgets of their keys. `host`: the address to listen on.
        `gateways`: addresses and networks of those who name flows for clients without keys.
        `parents`: as in the settings."""
        self.keys = keys
        self._hosts = AllowedHosts("allowed_hosts", (host, *allowed_hosts), any_address=True)
        self._checks_hosts = bool(allowed_hosts)  # whether clients have keys or not
        self._on_loopback = is_loopback(host)
        self._gateways = gateways
        self._is_gateway = lru_cache(maxsize=1024)(self._is_in_gateways)
        self._entries = entries
        self._all_parents = parents == "open"
        self._usage: dict[bytes, _KeyUsage] = {}
        self._jitter = jitter or random.Random()  # noqa: S311 (it only spreads retries)

    @property
    def requires_keys(self) -> bool:
        """Whether clients need API keys. Their keys are then not forwarded."""
        return self.keys is not None

    def names(self) -> dict[bytes, str]:
        """Returns the names of the known keys by their digests."""
        return {each.digest: each.name for each in self.keys or ()}

    def set_keys(self, keys: Keys, now: float) -> None:
        """Replaces the known keys. Running requests of removed keys continue, and what was used of
        their budgets counts if they come back."""
        self.keys = keys
        self._usage = {
            digest: usage
            for digest, usage in self._usage.items()
            if digest in keys or not usage.is_idle(now)
        }

    def may_name_flows(self, key: ApiKey | None, address: str) -> bool:
        """Whether fairness ids of this client count: it says for whom it asks. `address`: its own,
        empty if unknown."""
        return self._is_gateway(address) if key is None else key.gateway

    def check(self, path: str, head: Head) -> ApiKey | Refusal | None:
        """Returns the API key of a request, or why it is rejected. None: it needs no key, and has
        none where the key makes a difference."""
        keys = self.keys
        if (self._checks_hosts or (self._on_loopback and keys is None)) and path not in PROBES:
            host = head.host
            if host not in self._hosts.accepted:
                refused = self._hosts.check([] if host is None else [text_of(host)])
                if refused is not None:
                    return refused
        if keys is None or (path in WITHOUT_KEY and path != METRICS):
            return None
        value = text_of(head.credential)
        if not value:
            return None if path == METRICS else _NO_KEY
        key = without_scheme(value)
        if key is value and AUTHORIZATION in head.headers:
            return _NO_BEARER
        if not key:
            return _NO_KEY
        if len(key) > MAX_KEY_BYTES or len(encoded := key_bytes(key)) > MAX_KEY_BYTES:
            return _TOO_LONG
        found = keys.find(encoded) or _UNKNOWN
        if path == ENGINE_METRICS and isinstance(found, ApiKey) and not found.metrics:
            return _NOT_FOR_METRICS
        return found

    def check_owner(self, path: str, head: Head) -> ApiKey | Refusal | None:
        """Returns the key of a request that this sidecar makes for it: its digest is named where a
        client would send the key. None: clients need no key."""
        if self.keys is None:
            return None
        digest = bytes.fromhex(text_of(head.credential))
        return self.keys.get(digest) or _KEY_REMOVED

    def sees_all(self, key: ApiKey | None) -> bool:
        """Whether a client with this key, or without one, may read what concerns other clients."""
        return self.keys is None or (key is not None and key.metrics)

    def permits(self, key: ApiKey | None, *, parent: bool = False) -> bool:
        """Whether a client with this entry of a key, or without one, is still served. `parent`:
        whether it may be a parent sidecar, which claims slots and has leases."""
        if self.keys is None:
            return self._all_parents or not parent
        if key is None or self.keys.get(key.digest) != key:
            return False
        return key.sidecar or self._all_parents or not parent

    def reserve(
        self, key: ApiKey, wanted: GenerationRequest, body_bytes: int, now: float
    ) -> Reservation | Refusal:
        """Reserves what a request is expected to take of its key's budgets, or returns when to come
        back. To be called after `enter`, and settled by `leave`."""
        budgets = self._usage[key.digest].budgets
        reserved = budgets.expected(
            body_bytes, wanted.prompt_tokens, wanted.max_tokens, wanted.cost
        )
        requests, tokens = self.budget_of(key)
        longest_s, over = 0.0, None
        for limit, bucket, needed, reason in (
            (requests, budgets.requests, 1, Reason.KEY_REQUESTS),
            (tokens, budgets.tokens, reserved.tokens, Reason.KEY_TOKENS),
        ):
            bucket.drain(limit or 0.0, now)
            if limit is None:
                continue
            wait_s = bucket.wait_s(needed, limit)
            if wait_s > longest_s:
                longest_s, over = wait_s, _over_budget(reason, needed, limit, wait_s)
        if over is None:
            budgets.reserve(reserved)
        return over or reserved

    def ask_statement(self, key: ApiKey, now: float) -> Refusal | None:
        """Counts a request for a signed statement, or returns when to come back. Sidecars limit
        their own clients."""
        if key.sidecar:
            return None
        asked = self._usage.setdefault(key.digest, _KeyUsage()).statements
        asked.drain(STATEMENTS_PER_MINUTE, now)
        wait_s = asked.wait_s(1, STATEMENTS_PER_MINUTE)
        if wait_s > 0:
            text = f"an API key may ask for {STATEMENTS_PER_MINUTE:g} signed statements per minute"
            return Refusal(Reason.KEY_REQUESTS, text, retry_after_ms=math.ceil(1000 * wait_s))
        asked.used += 1
        return None

    def budget_of(self, key: ApiKey) -> tuple[float | None, float | None]:
        """Returns the requests and the tokens per minute that this entry grants a key; None: no
        limit."""
        requests, tokens = key.requests_per_minute, key.tokens_per_minute
        return (
            None if requests is None else requests / self._entries,
            None if tokens is None else tokens / self._entries,
        )

    def budget_fields(self, key: ApiKey, now: float) -> Fields:
        """Returns the headers that report the budgets of a key that has entered."""
        return self._usage[key.digest].budgets.fields(*self.budget_of(key), now)

    def settle(
        self, key: ApiKey, reserved: Reservation, record: Spent | None, body_bytes: int
    ) -> None:
        """Replaces what a request reserved by what it took. To be called before `leave`. `record`:
        None if no engine got anything of the request."""
        budgets = self._usage[key.digest].budgets
        if record is None or record.admitted is None:
            budgets.give_back(reserved)
        elif record.status >= 400:
            budgets.give_back_tokens(reserved)
        else:
            budgets.settle(
                reserved, body_bytes, record.input_tokens, record.generated_tokens, record.cost
            )

    def enter(self, key: ApiKey, cost: int, now: float) -> Refusal | None:
        """Counts `cost` sequences for a key. Returns a Refusal instead if they exceed its limit."""
        usage = self._usage.get(key.digest)
        if usage is None:
            usage = self._usage[key.digest] = _KeyUsage()
        limit = key.concurrency
        if limit is not None and cost and usage.sequences + cost > limit:
            return self._over_limit(cost, limit, usage, now)
        usage.sequences += cost
        return None

    def leave(self, key: ApiKey, cost: int, now: float) -> None:
        """Counts `cost` sequences as ended. Once for each `enter` that returned None."""
        usage = self._usage[key.digest]
        usage.sequences -= cost
        assert usage.sequences >= 0
        if key.concurrency is not None:
            usage.release_rate.released(cost, now)
        if (self.keys is None or key.digest not in self.keys) and usage.is_idle(now):
            del self._usage[key.digest]

    def sequences(self, key: ApiKey) -> int:
        """Returns how many sequences of this key are queued or running."""
        usage = self._usage.get(key.digest)
        return 0 if usage is None else usage.sequences

    def _is_in_gateways(self, address: str) -> bool:
        found = parse_address(address)
        return found is not None and any(found in network for network in self._gateways)

    def _over_limit(self, cost: int, limit: int, usage: _KeyUsage, now: float) -> Refusal:
        if cost > limit:
            return Refusal(
                Reason.COST_EXCEEDS_KEY,
                f"the request needs {cost} sequences at once (choices times prompts, or items of "
                f"its list), but its API key is limited to {limit}: send several smaller requests",
            )
        wait_ms = usage.release_rate.retry_after_ms(usage.sequences + cost - limit, now)
        return Refusal(
            Reason.KEY_CONCURRENCY,
            f"the request needs {cost} sequences, its API key is limited to {limit} at once, and "
            f"{usage.sequences} are queued or running: retry when some have ended",
            retry_after_ms=int(wait_ms * (1 + _JITTER * self._jitter.random())),
        )


def _over_budget(reason: Reason, needed: int, per_minute: float, wait_s: float) -> Refusal:
    what = "requests" if reason is Reason.KEY_REQUESTS else "tokens"
    expected = "" if what == "requests" else f", and this one is expected to take {needed}"
    return Refusal(
        reason,
        f"the API key has used its budget of {per_minute:g} {what} per minute{expected}: "
        "retry after the time in Retry-After",
        retry_after_ms=math.ceil(1000 * wait_s),
    )


def interactive_forbidden(headers: MultiMapping[str]) -> Refusal:
    """Returns the refusal of a request that asks to be interactive with a key for bulk requests."""
    for name in (X_ORCH_CLASS, *CLASS_ALIASES):
        value = headers.get(name)
        if value is None:
            continue
        alone = options.read_options(CIMultiDict({name: value}))
        if isinstance(alone, options.RequestOptions) and alone.service_class is INTERACTIVE:
            break
    else:
        raise ValueError("no header of this request asks for the interactive class")
    return Refusal(
        Reason.CLASS_FORBIDDEN,
        f"{name} is {value[:40]!r}, but this API key is for bulk requests only: remove the "
        "header, or use another key",
        param=str(name),
    )
