"""Limits how often each API key may ask for signed statements, of which an engine signs few.

Pure. An engine knows no keys of clients, and has a limit for all. Sidecars limit their own clients.
"""

from __future__ import annotations

import math
from typing import Final

from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.auth.budgets import Bucket
from orch_sidecar.auth.keys import ApiKey

# A run needs two. The engine signs five times as many for long.
PER_MINUTE: Final = 60.0


class StatementLimit:
    """What each key has asked for."""

    def __init__(self) -> None:
        self._asked: dict[str, Bucket] = {}  # by the names of keys

    def ask(self, key: ApiKey | None, now: float) -> Refusal | None:
        """Counts a request for a statement, or returns why it is refused."""
        if key is None or key.sidecar:
            return None
        asked = self._asked.setdefault(key.name, Bucket())
        asked.drain(PER_MINUTE, now)
        if (wait_s := asked.wait_s(1, PER_MINUTE)) > 0:
            text = f"an API key may ask for {PER_MINUTE:g} signed statements per minute"
            return Refusal(Reason.KEY_REQUESTS, text, retry_after_ms=math.ceil(1000 * wait_s))
        asked.used += 1
        return None
