"""Keeps what an engine can prove of its work: the chain of finished requests, signed statements.

Pure but for a secret of its own: clocks are passed in. All calls come from the thread of the API
server's event loop.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from vllm_plugin.contracts.statement import (
    STATEMENT_TYPE,
    Envelope,
    Leaf,
    Signed,
    envelope,
    first_head,
    next_head,
    pae,
    statement_digest,
    to_base64,
)

if TYPE_CHECKING:
    from vllm_plugin.evidence.epoch_key import EpochKey

# Of finished sequences: a quarter of an hour at 100 per second, in about 20 MiB.
MAX_LEAVES: Final = 100_000
# What lies between a run's two statements must be known until its end: ten hours of one statement
# per second, in about 10 MiB. To remember which runs are open instead would keep no fewer.
MAX_STATEMENTS: Final = 36_000

_COMPLETION: Final = re.compile(r"(cmpl-.*)-[0-9]+", re.DOTALL)


class Forgotten(Exception):
    """What lies between two statements is no longer kept; the message gives the limit."""


class FinishedRequests:
    """The chain of finished sequences, and the lines of the last ones."""

    def __init__(self, epoch: str, kept: int = MAX_LEAVES) -> None:
        self.count = 0
        self.head = first_head("leaves", epoch)
        self._lines: deque[str] = deque(maxlen=kept)
        self._secret = secrets.token_bytes(16)

    def add(self, finished_requests: Iterable[Any], at_s: float) -> None:
        """Adds vLLM's statistics of requests that finished at `at_s` (Unix seconds)."""
        for finished in finished_requests:
            self.count += 1
            # Keyed: a reader that knows a request's id must not find it here.
            request = hashlib.blake2b(
                _http_request(str(finished.request_id)).encode(), digest_size=8, key=self._secret
            )
            line = Leaf(
                self.count,
                request.hexdigest(),
                at_s - finished.e2e_latency,
                at_s,
                finished.queued_time,
                finished.prefill_time,
                finished.decode_time,
                finished.num_prompt_tokens,
                finished.num_generation_tokens,
                finished.num_cached_tokens,
                str(finished.finish_reason),
            ).line
            self.head = next_head(self.head, line.encode())
            self._lines.append(line)

    def since(self, count: int) -> list[str]:
        """Returns the lines after the first `count` sequences. Raises Forgotten."""
        wanted = self.count - count
        missing = wanted - len(self._lines)
        if missing > 0:
            kept = self._lines.maxlen
            raise Forgotten(f"{missing} finished sequences are forgotten: the last {kept} are kept")
        return list(islice(self._lines, len(self._lines) - wanted, None))


def _http_request(request_id: str) -> str:
    """Returns the part of vLLM's id that the sequences of one HTTP request have in common.

    vLLM numbers the prompts of a completion, also a single one: `cmpl-<id>-0`.
    """
    found = _COMPLETION.fullmatch(request_id)
    return request_id if found is None else found[1]


@dataclass(frozen=True, slots=True)
class StatementRequest:
    """`nonce`: None without one. `since`: the sequence number of an earlier statement."""

    run: str
    nonce: str | None
    since: int | None


@dataclass(frozen=True, slots=True)
class Statement:
    """A signed statement. `between`, `leaves`: what lies between it and the earlier one, or None
    where none was named: digests of statements, and lines of finished sequences."""

    envelope: Envelope
    between: list[str] | None
    leaves: list[str] | None


@dataclass(slots=True)
class _Made:
    """A statement of the past: its digest in hexadecimal, and how many sequences had finished.
    `run`: a hash of the run's name and nonce while the run that it began is open, else 0."""

    digest: str
    leaves: int
    run: int


class Evidence:
    """Signs statements about one engine."""

    def __init__(
        self,
        epoch: str,
        document: Callable[[float], dict[str, Any]],
        digests: Callable[[], dict[str, Any]],
        make_key: Callable[[], EpochKey],
    ) -> None:
        """`document`: the engine's state at a time. `digests`: of its weights and of the plugin.
        `make_key`: called for the first statement."""
        self.epoch = epoch
        self.finished = FinishedRequests(epoch)
        self._document = document
        self._digests = digests
        self._make_key = make_key
        self._key: EpochKey | None = None
        self._sequence = 0
        self._head = first_head("statements", epoch)
        self._made: deque[_Made] = deque(maxlen=MAX_STATEMENTS)

    @property
    def key(self) -> EpochKey:
        """The key of this epoch. Raises what `make_key` raises."""
        if self._key is None:
            self._key = self._make_key()
        return self._key

    @property
    def public_key(self) -> str:
        """The public key of this epoch, in base64."""
        return to_base64(self.key.public)

    def statement(self, request: StatementRequest, wall_s: float, monotonic_s: float) -> Statement:
        """Signs a statement of this moment. Raises Forgotten, and what `make_key` raises."""
        key = self.key
        between, leaves = (None, None) if request.since is None else self._since(request.since)
        self._sequence += 1
        content = {
            "type": STATEMENT_TYPE,
            "run": request.run,
            "nonce": request.nonce,
            "sequence": self._sequence,
            "previous": self._head.hex(),
            "epoch": self.epoch,
            "key_id": key.id,
            "wall_s": round(wall_s, 6),
            "monotonic_s": round(monotonic_s, 6),
            "finished": {"count": self.finished.count, "head": self.finished.head.hex()},
            "digests": self._digests(),
            "state": self._document(wall_s),
        }
        payload = json.dumps(content, separators=(",", ":"), allow_nan=False).encode()
        digest = statement_digest(payload)
        self._head = next_head(self._head, digest)
        run = _hash(request) if request.since is None else 0
        self._made.append(_Made(digest.hex(), self.finished.count, run))
        signature = key.sign(pae(STATEMENT_TYPE, payload))
        return Statement(
            envelope(Signed(STATEMENT_TYPE, payload, key.id, signature)), between, leaves
        )

    def end_run(self, request: StatementRequest) -> bool:
        """Ends the run that a statement of the same name and nonce began. Returns whether it was
        open: nobody else and nothing later ends it."""
        index = None if request.since is None else self._index(request.since)
        if index is None or self._made[index].run != _hash(request):
            return False
        self._made[index].run = 0
        return True

    def _index(self, sequence: int) -> int | None:
        """Returns where a statement is kept; None if it is not."""
        index = len(self._made) - (self._sequence - sequence) - 1
        return index if 0 <= index < len(self._made) else None

    def _since(self, sequence: int) -> tuple[list[str], list[str]]:
        index = self._index(sequence)
        if index is None:
            raise Forgotten(
                f"statement {sequence} is not one of the last {len(self._made)}, which end with "
                f"{self._sequence}: ask for a statement before the run"
            )
        between = [made.digest for made in islice(self._made, index + 1, None)]
        return between, self.finished.since(self._made[index].leaves)


def _hash(request: StatementRequest) -> int:
    """Returns what both requests of a run have in common; nobody else knows its nonce."""
    return hash((request.run, request.nonce))
