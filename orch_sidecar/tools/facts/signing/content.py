"""Parses the JSON that an engine or an operator signed. Pure.

Anybody can sign something with a key of their own: what does not belong there is refused before it
is computed with.
"""

from __future__ import annotations

import json
from typing import Any, Final, NoReturn

# An integer of more digits is no count, and too large for a float.
_MOST_DIGITS: Final = 18


def parse_content(payload: bytes, kind: str) -> dict[str, Any]:
    """Returns an object whose `type` is `kind`. Raises ValueError."""
    try:
        content = json.loads(payload, parse_int=_integer, parse_constant=_no_number)
    except RecursionError:
        content = None
    if not isinstance(content, dict) or content.get("type") != kind:
        raise ValueError(f"its type must be {kind}")
    return content


def _integer(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"{digits[:40]} has more than {_MOST_DIGITS} digits")
    return int(digits)


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
