"""Defines what is listed of vLLM's names: one place, and what is used of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Hook:
    """A place in vLLM: its file, class or function, the names it must have, what needs them."""

    file: str
    what: str
    names: tuple[str, ...]
    needed_for: str
