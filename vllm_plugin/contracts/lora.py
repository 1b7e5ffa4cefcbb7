"""How the LoRA adapter of a request is named to an engine, and how long others may keep it waiting.

    X-Orch-Adapter   beside X-Orch-Lease: the adapter's name, percent-encoded; absent: the base
                     model, or a sidecar that knows of no adapters

An engine runs sequences of at most so many adapters at once (`max_loras`). It rejects a request of
another one before its body is read, with the error type NO_ADAPTER, and keeps its slot free.

Pure, without vLLM: the plugin and the sidecar both import it.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, unquote

ADAPTER_HEADER: Final = "X-Orch-Adapter"
# The type of the error with which an engine rejects a request for want of room for its adapter.
NO_ADAPTER: Final = "no_adapter"
# Requests of adapters in use may join those that run for so long while another adapter waits: a
# fraction of what users wait for a first token, and several times what an answer takes, so that
# adapters which alternate do so in batches.
PASSED_S: Final = 2.0


def encoded(adapter: str) -> str:
    """Returns a name as the value of the header."""
    return quote(adapter, safe="")


def parse_adapter(value: str) -> str | None:
    """Returns the name in a header's value; None for an empty one."""
    return unquote(value) or None
