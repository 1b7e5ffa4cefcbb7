"""Reads vLLM's command line as far as that is possible without vLLM.

Decides how an option is spelled and found, and which integers contradict a profile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vllm_plugin.contracts.profile import ArgumentRule, Profile


def option(name: str) -> str:
    """Returns the option of an engine argument."""
    return f"--{name.replace('_', '-')}"


def value_of(argv: Sequence[str], *options: str) -> str | None:
    """Returns the last value of an option in an argument list, in any of vLLM's spellings."""
    found = None
    for position, word in enumerate(argv):
        name, equals, value = word.partition("=")
        if name.replace("_", "-") in options:
            if equals:
                found = value
            elif position + 1 < len(argv):
                found = argv[position + 1]
    return found


def contradiction(name: str, given: Any, rule: ArgumentRule) -> str | None:
    """Returns what contradicts the rule of an engine argument; None if nothing does."""
    objection = rule.objection(given)
    return f"{option(name)} is {given!r}, {objection}" if objection else None


def contradictions(argv: Sequence[str], profile: Profile) -> list[str]:
    """Returns what contradicts the profile among the integers on a command line."""
    found = []
    for name, rule in profile.engine.items():
        try:
            given = int(value_of(argv, option(name)) or "")
        except ValueError:
            continue  # not given, or vLLM's to read: it takes 8k, too
        if type(rule.value) is int and (text := contradiction(name, given, rule)):
            found.append(text)
    return found
