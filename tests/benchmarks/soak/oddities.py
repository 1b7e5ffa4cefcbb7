"""Invalid requests and requests to the sidecar itself, and the statuses that they may get."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tests.benchmarks.soak.answers import CHAT

STRANGER: Final = "orch-of-nobody-that-is-known-here"

_BODY: Final = b'{"model": "tiny", "messages": [{"role": "user", "content": "soak"}]'


@dataclass(frozen=True, slots=True)
class Oddity:
    """`fields`: header lines besides those that every request has."""

    name: str
    statuses: tuple[int, ...]
    method: str = "POST"
    path: str = CHAT
    body: bytes = b""
    fields: tuple[str, ...] = ()
    length: int | None = None

    def data(self, key: str) -> bytes:
        """The whole request."""
        length = len(self.body) if self.length is None else self.length
        lines = [
            f"{self.method} {self.path} HTTP/1.1",
            "Host: localhost",
            f"Authorization: Bearer {key}",
            "Content-Type: application/json",
            f"Content-Length: {length}",
            *self.fields,
        ]
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + self.body


ALL: Final = (
    Oddity("half of a JSON body", (400,), body=_BODY),
    Oddity("a key given twice", (400,), body=_BODY + b', "n": 1, "n": 2}'),
    Oddity("a number in a string", (400,), body=_BODY + b', "n": "2"}'),
    Oddity("more sequences than parts", (400, 503), body=_BODY + b', "n": 100000}'),
    Oddity("deep nesting", (400,), body=_BODY + b', "x": ' + b"[" * 500 + b"]" * 500 + b"}"),
    Oddity("an unknown class", (400,), body=_BODY + b"}", fields=("X-Orch-Class: royal",)),
    Oddity("a wait in words", (400,), body=_BODY + b"}", fields=("X-Orch-Max-Wait-Ms: soon",)),
    Oddity("a spent lease", (400, 409), body=_BODY, fields=("X-Orch-Lease: x",)),
    Oddity("a compressed body", (415,), body=_BODY + b"}", fields=("Content-Encoding: gzip",)),
    Oddity("a body that is too large", (413,), length=2**30),
    Oddity("an unknown path", (404,), path="/v1/nothing"),
    Oddity("an administration path", (404,), path="/sleep"),
    Oddity("another method", (405,), method="GET"),
    Oddity("a cancel of nothing", (404,), path="/v1/requests/nothing/cancel"),
    Oddity("the capabilities", (200,), method="GET", path="/v1/capabilities"),
    Oddity("the readiness", (200, 503), method="GET", path="/readyz"),
    Oddity("the liveness", (200,), method="GET", path="/livez"),
    Oddity("bytes that are no HTTP", (400,), method="\x01\x02", path="?"),
)
