"""Who is served, as what, and how much of it at once. Without keys: everybody, without limits.

Pure: time is a parameter, seconds of a monotonic clock. Guarded is all that a client can ask of
this sidecar, the state stream and the leases of sidecars above included, but for what probes and
Prometheus ask: these carry no keys, and are kept to those who should reach them by the network.
The operators' listener has no keys; it is on the loopback unless told otherwise.

A client's key says who it is before anything of its request is read. What it may have is looked
at when its request has been read: the class, and how many sequences of this key wait or run. They
are counted here, each request by itself where requests share a decode, until its client has its
answer or is gone.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Final

from multidict import CIMultiDict, MultiMapping

from orch_sidecar.admission.prediction.release_rate import ReleaseRate
from orch_sidecar.api import options
from orch_sidecar.api.headers import AUTHORIZATION, CLASS_ALIASES, X_ORCH_CLASS
from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.auth.keys import MAX_KEY_BYTES, ApiKey, Keys, bare, octets, sent
from vllm_plugin.profile import ServiceClass

OPEN: Final = frozenset({"/livez", "/readyz", "/healthz", "/health", "/metrics", "/metrics/engine"})

# Clients of one key that are told to come back are not to come all at once.
_JITTER: Final = 0.25

# Bound once: looking up a member of an enum is slow.
_INTERACTIVE: Final = ServiceClass.INTERACTIVE


def _unknown(message: str) -> Refusal:
    return Refusal(Reason.UNAUTHORIZED, message)


_NO_KEY: Final = _unknown("an API key is needed: Authorization: Bearer <key>, or X-Api-Key: <key>")
_NO_BEARER: Final = _unknown("Authorization must be Bearer <key>")
_TOO_LONG: Final = _unknown(f"this API key is none: it has more than {MAX_KEY_BYTES} bytes")
_NOBODYS: Final = _unknown("this API key is not known here")


class _InUse:
    """The sequences of one key that wait or run here, and how fast they end."""

    __slots__ = ("drain_rate", "sequences")

    def __init__(self) -> None:
        self.sequences = 0
        self.drain_rate = ReleaseRate()


class Authorizer:
    """Knows the keys, and what of each is being served."""

    def __init__(self, keys: Keys | None, jitter: random.Random | None = None) -> None:
        """`keys`: None for none, so that everybody is served."""
        self.keys = keys
        self._in_use: dict[bytes, _InUse] = {}
        self._jitter = jitter or random.Random()  # noqa: S311 (it only spreads retries)

    @property
    def closed(self) -> bool:
        """Whether keys are asked for. Then those of clients end here."""
        return self.keys is not None

    def hold(self, keys: Keys) -> None:
        """These are known from now on, and no others. What runs goes on."""
        self.keys = keys
        self._in_use = {
            digest: used
            for digest, used in self._in_use.items()
            if used.sequences or digest in keys
        }

    def check(self, path: str, headers: Mapping[str, str]) -> ApiKey | Refusal | None:
        """Whose request it is. None: no key is asked for."""
        keys = self.keys
        if keys is None or path in OPEN:
            return None
        value = sent(headers)
        if not value:
            return _NO_KEY
        key = bare(value)
        if key is value and AUTHORIZATION in headers:
            return _NO_BEARER
        if not key:
            return _NO_KEY
        if len(key) > MAX_KEY_BYTES or len(given := octets(key)) > MAX_KEY_BYTES:
            return _TOO_LONG
        return keys.of(given) or _NOBODYS

    def enter(self, key: ApiKey, cost: int, now: float) -> Refusal | None:
        """So many sequences of this key are to be served. None: they count from here on."""
        used = self._in_use.get(key.digest)
        if used is None:
            used = self._in_use[key.digest] = _InUse()
        limit = key.concurrency
        if limit is not None and used.sequences + cost > limit:
            return self._refused(cost, limit, used, now)
        used.sequences += cost
        return None

    def leave(self, key: ApiKey, cost: int, now: float) -> None:
        """They are not served any more. Once for each that `enter` let in."""
        used = self._in_use[key.digest]
        used.sequences -= cost
        assert used.sequences >= 0
        if key.concurrency is not None:
            used.drain_rate.released(cost, now)
        if not used.sequences and (self.keys is None or key.digest not in self.keys):
            del self._in_use[key.digest]

    def in_use(self, key: ApiKey) -> int:
        """Sequences of this key that wait or run here."""
        used = self._in_use.get(key.digest)
        return 0 if used is None else used.sequences

    def _refused(self, cost: int, limit: int, used: _InUse, now: float) -> Refusal:
        if cost > limit:
            return Refusal(
                Reason.COST_EXCEEDS_KEY,
                f"this request needs {cost} sequences at once (n times the number of prompts), "
                f"this API key may have {limit}",
            )
        wait_ms = used.drain_rate.retry_after_ms(used.sequences + cost - limit, now)
        return Refusal(
            Reason.KEY_CONCURRENCY,
            f"{used.sequences} sequences of this API key wait or run here, this request needs "
            f"{cost} more, and it may have {limit} at once",
            retry_after_ms=int(wait_ms * (1 + _JITTER * self._jitter.random())),
        )


def only_bulk(headers: MultiMapping[str]) -> Refusal:
    """What a request is told that demands to be interactive with a key for bulk."""
    for name in (X_ORCH_CLASS, *CLASS_ALIASES):
        value = headers.get(name)
        if value is None:
            continue
        told = options.read_options(CIMultiDict({name: value}))
        if isinstance(told, options.RequestOptions) and told.service_class is _INTERACTIVE:
            break
    else:
        raise ValueError("this request does not demand to be interactive")
    return Refusal(
        Reason.CLASS_FORBIDDEN,
        f"{name}: {value[:40]!r}: this API key is for bulk requests only",
        param=str(name),
    )
