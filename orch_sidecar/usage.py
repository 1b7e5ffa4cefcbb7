"""Token counts from the end of an answer, without parsing it.

Pure. vLLM writes `usage` near the end of a JSON answer, and in the last event of a stream that
asks for it; inside generated text every quote is escaped, so it cannot be mistaken for that.
"""

from __future__ import annotations

import re
from typing import Final

_INPUT: Final = re.compile(rb'"(?:prompt|input)_tokens":\s*([0-9]{1,12})')
_OUTPUT: Final = re.compile(rb'"(?:completion|output)_tokens":\s*([0-9]{1,12})')

# `usage` and what may follow it is far shorter.
TAIL_BYTES: Final = 4096


def read(*writes: bytes) -> tuple[int | None, int | None]:
    """Input and output tokens from the last bytes of an answer; None for what is not there."""
    tail = b"".join(writes)[-TAIL_BYTES:]
    found = (list(pattern.finditer(tail)) for pattern in (_INPUT, _OUTPUT))
    counts = [int(matches[-1][1]) if matches else None for matches in found]
    return counts[0], counts[1]
