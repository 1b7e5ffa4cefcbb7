"""Registers the requests being served, so that clients can look at them and cancel them.

A request is identified by its `X-Orch-Request-Id` and belongs to the API key it was sent with.
With any other key it appears not to exist; ids chosen by clients are therefore unique only per
key. Registering costs a request one insertion and one removal: keys are hashed and compared only
for a cancellation, or for an id that a client has chosen.

Pure. A request knows how to end itself.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from collections.abc import Mapping
from itertools import chain
from typing import TYPE_CHECKING, Final

from orch_sidecar.api.headers import X_ORCH_REQUEST_ID, text_of
from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.auth.keys import credential, key_bytes, without_scheme

if TYPE_CHECKING:
    from orch_sidecar.proxy.request import Request

# At least so many ids of ended requests are remembered, and at most twice as many: a cancellation
# that arrives just after the end succeeds, too. More than 30 s at 100 requests per second.
ENDED_KEPT: Final = 4096

# Of longer keys only the digest is kept: a client must not be able to fill the memory.
_LONG_KEY: Final = 128

_ID: Final = re.compile(r"[0-9a-f]{32}")

# A generated id, or one chosen by a client with the digest of its key.
RequestName = str | tuple[str, bytes]

CANCELLED: Final = Refusal(Reason.CANCELLED, "this request was cancelled")


class InFlight:
    """The requests being served, and the ids of those that ended recently."""

    def __init__(self) -> None:
        self._requests: dict[RequestName, Request] = {}
        # With what each was sent, of a long key the digest in hexadecimal.
        self._ended: dict[RequestName, bytes | str] = {}
        self._ended_before: dict[RequestName, bytes | str] = {}
        self._secret = os.urandom(32)

    def __len__(self) -> int:
        return len(self._requests)

    def name_for(self, client_id: str, headers: Mapping[str, str]) -> RequestName | None:
        """Returns the name of a request whose client chose the id. None: see `unusable_name`."""
        name = (client_id, self._digest(credential(headers) or ""))
        return None if _ID.fullmatch(client_id) is None or name in self._requests else name

    def unusable_name(self, client_id: str) -> Refusal:
        """Returns the refusal of a request whose client chose an unusable id."""
        if _ID.fullmatch(client_id) is None:
            text = f"{X_ORCH_REQUEST_ID} must be 32 lowercase hexadecimal digits"
        else:
            text = f"{X_ORCH_REQUEST_ID} is in use by another request in flight; use a unique one"
        return Refusal(Reason.INVALID_REQUEST, text, param=X_ORCH_REQUEST_ID)

    def begin(self, name: RequestName, request: Request) -> None:
        """Registers a request. `name`: a generated id, or from `name_for`."""
        self._requests[name] = request

    def end(self, name: RequestName) -> None:
        """Removes a request that has ended. Raises KeyError if it is not registered."""
        http = self._requests.pop(name).http
        sent, ended = http.credential or b"", self._ended
        ended[name] = sent if len(sent) <= _LONG_KEY else self._digest(text_of(sent)).hex()
        if len(ended) >= ENDED_KEPT:
            self._ended_before, self._ended = ended, {}

    def cancel(self, request_id: str, headers: Mapping[str, str] | None) -> bool:
        """Cancels a request of the client with these headers; None: of any, for an operator.

        Returns True if it is cancelled or had ended, False if the client has no such request.
        """
        found = self.find(request_id, headers)
        for request in found or ():
            request.cancel(CANCELLED)
        return found is not None

    def find(self, request_id: str, headers: Mapping[str, str] | None) -> list[Request] | None:
        """Returns the requests of the client with these headers: one, or two if it chose an id that
        was generated; none if it has ended. None: the client has no such request.

        `headers`: None for an operator: of any client, several of whom may have chosen one id.
        """
        if headers is None:
            known = chain(self._requests, self._ended, self._ended_before)
            names = [each for each in known if request_id == _id_of(each)]
        else:
            key = self._digest(credential(headers) or "")
            # Both are looked at, so that timing does not reveal which ids exist.
            own: dict[RequestName, bool] = {
                each: self._belongs_to(key, each) for each in (request_id, (request_id, key))
            }
            names = [each for each, belongs in own.items() if belongs]
        return [self._requests[each] for each in names if each in self._requests] if names else None

    def _belongs_to(self, key: bytes, name: RequestName) -> bool:
        """Returns whether the request was sent with that key (a digest)."""
        request = self._requests.get(name)
        if request is not None:
            sent: bytes | str | None = request.http.credential or b""
        else:
            sent = self._ended.get(name, self._ended_before.get(name))
        # Compared for unknown ids, too, so that timing does not reveal which ids exist.
        known = sent if isinstance(sent, str) else self._digest(text_of(sent)).hex()
        same = hmac.compare_digest(known, key.hex())
        return sent is not None and same

    def _digest(self, key: str) -> bytes:
        """Returns the digest of a key as the client sent it."""
        return hashlib.blake2b(key_bytes(without_scheme(key)), key=self._secret).digest()


def _id_of(name: RequestName) -> str:
    return name if isinstance(name, str) else name[0]
