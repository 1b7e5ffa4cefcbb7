"""Requests that are being served, for cancelling them.

A request is named by its `X-Orch-Request-Id` and belongs to the API key that it came with. To
anybody else it does not exist, whether it does or not; so an id that a client brings is a name
among those of its own key only. Registering costs a request one insertion and one removal; keys
are digested and compared when somebody cancels, or brings an id.

Pure. How a request is ended is the request's own business.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from collections.abc import Mapping
from typing import Final, Protocol

from orch_sidecar.api.headers import X_ORCH_REQUEST_ID
from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.auth.keys import credential, key_bytes, without_scheme

# The ids that ended last, twice as many at most: a cancel that crosses the end is answered as
# one that came in time. At a hundred requests per second that is more than half a minute.
ENDED_KEPT: Final = 4096

# Longer keys are remembered by their digests: what a client sends must not fill the memory.
_LONG_KEY: Final = 128

_ID: Final = re.compile(r"[0-9a-f]{32}")

# An id of ours, or one that a client brought and the digest of its key.
Name = str | tuple[str, bytes]

CANCELLED: Final = Refusal(Reason.CANCELLED, "this request was cancelled")


class Cancellable(Protocol):
    """A request that is being served."""

    @property
    def headers(self) -> Mapping[str, str]:
        """The client's."""

    def cancel(self, refusal: Refusal) -> None:
        """Ends it, wherever it is: nothing of its answer goes out after this but `refusal`.

        Does nothing to one that has ended or was cancelled before.
        """


class InFlight:
    """The requests that are being served, and the ids of those that were until lately."""

    def __init__(self) -> None:
        self._requests: dict[Name, Cancellable] = {}
        self._ended: dict[Name, str | bytes] = {}
        self._ended_before: dict[Name, str | bytes] = {}
        self._secret = os.urandom(32)

    def __len__(self) -> int:
        return len(self._requests)

    def brought(self, given: str, headers: Mapping[str, str]) -> Name | Refusal:
        """The name of a request whose client brings its `X-Orch-Request-Id`, or why it is none."""
        name = (given, self._digest(credential(headers) or ""))
        if _ID.fullmatch(given) is None:
            rule = "must be 32 hexadecimal digits in lower case"
        elif name in self._requests:
            rule = "must not be that of a request of yours in flight"
        else:
            return name
        return Refusal(
            Reason.INVALID_REQUEST,
            f"{X_ORCH_REQUEST_ID}, where a client brings its own, {rule}",
            param=X_ORCH_REQUEST_ID,
        )

    def begin(self, name: Name, request: Cancellable) -> None:
        """Its handling begins. The name is an id of ours, or was `brought`."""
        self._requests[name] = request

    def end(self, name: Name) -> None:
        """Its handling has ended. Raises KeyError for one that has not begun."""
        key: str | bytes = credential(self._requests.pop(name).headers) or ""
        ended = self._ended
        ended[name] = key if len(key) <= _LONG_KEY else self._digest(key)
        if len(ended) >= ENDED_KEPT:
            self._ended_before, self._ended = ended, {}

    def cancel(self, request_id: str, headers: Mapping[str, str]) -> bool:
        """Cancels a request for a client with these headers. True: it is over, by this or before.

        False: nothing of that name belongs to this client.
        """
        key = self._digest(credential(headers) or "")
        names: tuple[Name, ...] = (request_id, (request_id, key))
        found = [self._is_of(key, name) for name in names]
        for name, is_theirs in zip(names, found, strict=True):
            if is_theirs and (request := self._requests.get(name)) is not None:
                request.cancel(CANCELLED)
        return any(found)

    def _is_of(self, key: bytes, name: Name) -> bool:
        """Whether a request of that name is or was that key's."""
        request = self._requests.get(name)
        owner: str | bytes | None
        if request is not None:
            owner = credential(request.headers) or ""
        else:
            owner = self._ended.get(name)
            if owner is None:
                owner = self._ended_before.get(name)
        # Compared for unknown ids, too: the time that it takes does not tell them apart.
        same = hmac.compare_digest(self._digest(owner or ""), key)
        return owner is not None and same

    def _digest(self, key: str | bytes) -> bytes:
        """A digest of a key as a client sent it; one that is a digest already stays as it is."""
        if isinstance(key, bytes):
            return key
        return hashlib.blake2b(key_bytes(without_scheme(key)), key=self._secret).digest()
