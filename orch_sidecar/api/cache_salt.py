"""Salts the engines' prefix cache, so that only those share it who want to.

Pure. A prompt that was computed before is answered sooner, which would tell a client what others
asked. vLLM uses for a request only what was computed for the same `cache_salt`. A body is edited as
bytes and never encoded again: all else that the client wrote stays as it is.
"""

from __future__ import annotations

import hmac
import json
import re
from base64 import urlsafe_b64encode
from typing import Final, NamedTuple

from orch_sidecar.api.body import UTF_8
from orch_sidecar.api.refusal import Reason, Refusal

_NAME: Final = "cache_salt"
# Of the name with all of its characters escaped; longer ones are not even decoded.
_MAX_NAME_BYTES: Final = 6 * len(_NAME) + 2
# A body that begins so has a member: another one can be written before it.
_OBJECT_START: Final = b'{"'
# A client's own salt is looked for in bodies up to this size, which takes 20 ms at most, in which
# the event loop waits; or it is in front.
_MAX_SEARCHED_BYTES: Final = 2**20
_SALT_START: Final = b'{"cache_salt"'
_STRING: Final = rb'"(?:[^"\\]++|\\.)*+"'
# A string, with the colon after it if it names a member; or what opens or closes a level.
_TOKEN: Final = re.compile(rb"(%b)([ \t\n\r]*+:[ \t\n\r]*+)?+|[{}\[\]]" % _STRING, re.DOTALL)
_VALUE: Final = re.compile(rb"null|%b" % _STRING, re.DOTALL)
_EMPTY_OBJECT: Final = re.compile(rb"[ \t\n\r]*+\}")


class CacheSalt(NamedTuple):
    """The salt of those who share the cache. `owner`: secret, another one for all others.
    `member`: of a body without a salt of its own, with the comma behind it."""

    owner: bytes
    member: bytes

    def into(self, body: bytes, *, has_own: bool) -> tuple[bytes, bytes] | Refusal:
        """Returns the body of a valid request with this salt, and what has yet to be written after
        the first byte: most bodies need not be copied. `has_own`: the body has a salt of the
        client, which is replaced, and on which the new one depends."""
        if not has_own and body.startswith(_OBJECT_START):
            return body, self.member
        if has_own and len(body) > _MAX_SEARCHED_BYTES and not body.startswith(_SALT_START):
            text = f"{_NAME} must come first in a body of more than {_MAX_SEARCHED_BYTES} bytes"
            return Refusal(Reason.INVALID_REQUEST, text, _NAME)
        encoding = json.detect_encoding(body)
        if encoding not in UTF_8:
            body = body.decode(encoding, "surrogatepass").encode("utf-8", "surrogatepass")
        if has_own:
            begin, end = _own(body)
            given = body[begin:end]
            salt = _salt(self.owner, b"" if given == b"null" else given)
        else:
            begin = end = body.index(b"{") + 1
            salt = self.member[:-1] if _EMPTY_OBJECT.match(body, begin) else self.member
        return b"".join((memoryview(body)[:begin], salt, memoryview(body)[end:])), b""


class CacheSalts:
    """The salts of all keys, made from a secret of the installation."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._known: dict[tuple[str, str | None], CacheSalt] = {}

    def of(self, key: str, group: str | None) -> CacheSalt:
        """Returns the salt of a key, or of the group with which it shares the cache."""
        who = (key, None) if group is None else ("", group)
        found = self._known.get(who)
        if found is None:
            owner = hmac.digest(self._secret, repr(who).encode(), "sha256")
            found = self._known[who] = CacheSalt(owner, b'"cache_salt":%b,' % _salt(owner, b""))
        return found


def _own(body: bytes) -> tuple[int, int]:
    """Returns where the client's own salt begins and ends, which is a text or null."""
    depth = 0
    for token in _TOKEN.finditer(body):
        name, colon = token.groups()
        if name is None:
            depth += 1 if token[0] in (b"{", b"[") else -1
        elif colon and depth == 1 and len(name) <= _MAX_NAME_BYTES and json.loads(name) == _NAME:
            value = _VALUE.match(body, token.end())
            assert value is not None
            return value.span()
    raise AssertionError("the body has no cache_salt")


def _salt(owner: bytes, own: bytes) -> bytes:
    """Returns a salt as JSON: 43 characters, as vLLM recommends, none of which it rejects."""
    return b'"%b"' % urlsafe_b64encode(hmac.digest(owner, own, "sha256")).rstrip(b"=")
