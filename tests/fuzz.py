"""How many examples Hypothesis tries: a part in `make test`, all of them in `make test-long`."""

from __future__ import annotations

import os
from typing import Final

_SHARE: Final = 1 if os.environ.get("EXAMPLES") == "all" else 5


def examples(number: int) -> int:
    """Returns `number`, or a fifth of it, unless EXAMPLES=all is in the environment."""
    return number // _SHARE
