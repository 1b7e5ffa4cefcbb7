"""Checks that vLLM still has every name that the plugin uses.

The same check serves the running engine (sources of the installed package) and releases that
cannot run here (sources or symbols of their wheels). The names are in `vllm_names`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from vllm_plugin.compatibility.symbols import Symbols
from vllm_plugin.compatibility.vllm_names import HOOKS, Hook


@dataclass(frozen=True, slots=True)
class Finding:
    """A hook, and which of its names are missing; all of them if the place does not exist."""

    hook: Hook
    missing: tuple[str, ...]


def check(symbols_of: Callable[[str], Symbols | None]) -> list[Finding]:
    """Checks every hook. `symbols_of` returns a file's symbols, None if it does not exist."""
    findings = []
    for hook in HOOKS:
        names = (symbols_of(hook.file) or {}).get(hook.what)
        missing = hook.names if names is None else tuple(n for n in hook.names if n not in names)
        findings.append(Finding(hook, missing))
    return findings


def report(version: str, findings: list[Finding]) -> tuple[str, bool]:
    """Returns the text for the log, and whether every hook was found."""
    missing = [finding for finding in findings if finding.missing]
    lines = [f"orch: vLLM {version}: {len(findings) - len(missing)} of {len(findings)} hooks found"]
    for finding in findings:
        place = f"{finding.hook.file}:{finding.hook.what or '(module)'}"
        if finding.missing:
            lines.append(
                f"  MISSING {place}: {', '.join(finding.missing)} "
                f"(needed for {finding.hook.needed_for})"
            )
        else:
            lines.append(f"  found {place} ({finding.hook.needed_for})")
    return "\n".join(lines), not missing
