"""What an engine is doing while it starts, in words, from the lines that vLLM logs.

Pure. The texts are vLLM's own, of 0.32 and 0.33, and the plugin's; a line that is not known changes
nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

# In the order in which an engine usually comes through them; the last line that matches counts.
_PHASES: Final = tuple(
    (re.compile(pattern), phase)
    for pattern, phase in (
        (r"Resolved architecture|Using max model len", "reading its configuration"),
        (r"orch: profile |Initializing a V1 LLM engine|distributed_init_method=",
         "starting its workers"),
        (r"Time spent downloading|Starting to load model", "loading the weights"),
        (r"Loading (?:safetensors|pt) checkpoint shards:\s+(\d+%)", "loading the weights"),
        (r"Loading weights took|Model loading took", "preparing the model"),
        (r"Dynamo bytecode transform|Compiling a graph|Warming up model for the compilation",
         "compiling the model"),
        (r"Available KV cache memory|KV cache size:", "reserving the KV cache"),
        (r"Capturing CUDA graphs.*?:\s+(\d+%)", "capturing CUDA graphs"),
        (r"orch: warming up", "warming up"),
        (r"init engine \(profile|Starting vLLM|Started server process", "starting its API"),
    )
)  # fmt: skip

FIRST: Final = "importing vLLM"


def phase_of(lines: Iterable[str]) -> tuple[str, str]:
    """Returns the phase that the last of these lines belong to, and how far it is, if known."""
    found = FIRST, ""
    for line in lines:
        for pattern, phase in _PHASES:
            if (match := pattern.search(line)) is not None:
                found = phase, (match[1] if match.lastindex else "")
    return found
