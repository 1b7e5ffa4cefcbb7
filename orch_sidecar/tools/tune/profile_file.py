"""Writes a profile with the tuned values: a copy of a shipped or own one, with a few changed.

Pure but for reading the profile that it is based on.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import yaml

from orch_sidecar.tools.tune.decision import Decision
from vllm_plugin.contracts import profile as profiles
from vllm_plugin.contracts.profile import ProfileError

_STEP: Final = "max_num_batched_tokens"
_CHUNK: Final = "long_prefill_token_threshold"
# So many prompts share a step, as in the shipped profiles.
_PROMPTS_PER_STEP: Final = 8
_LEAST_CHUNK: Final = 64


def tuned_profile(
    base: str, decision: Decision, ttft_ms: float | None, tpot_ms: float | None, source: str
) -> str:
    """Returns the text of the profile. `base`: name or path. `source`: of the values, one line.

    Raises ProfileError if `base` cannot be used, or does not batch.
    """
    read = profiles.load(base)
    if not read.batching:
        raise ProfileError(f"profile {read.name!r}: it does not batch, so there is nothing to tune")
    is_path = "/" in base or base.endswith((".yaml", ".yml"))
    path = Path(base) if is_path else profiles.directory() / f"{base}.yaml"
    document: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    engine = document["engine"]
    _set(engine, profiles.SLOTS_ARGUMENT, max(2, decision.slots))
    if decision.step_tokens is not None:
        _set(engine, _STEP, decision.step_tokens)
        _set(engine, _CHUNK, max(_LEAST_CHUNK, decision.step_tokens // _PROMPTS_PER_STEP))
    interactive = document["admission"].get("interactive")
    if interactive is not None:
        if ttft_ms is not None:
            interactive["ttft_p95_ms"] = ttft_ms
        if tpot_ms is not None:
            interactive["tpot_p95_ms"] = tpot_ms
    head = f"# {source}\n# Engine and sidecar read the same file: give it to both (--profile).\n"
    return head + yaml.safe_dump(document, sort_keys=False)


def _set(engine: dict[str, Any], name: str, value: int) -> None:
    """Sets the default of an argument, at least its minimum; one that is fixed stays fixed."""
    rule = engine.get(name, {})
    if "fixed" in rule:
        return
    least = rule.get("minimum")
    engine[name] = {**rule, "default": value if least is None else max(value, least)}
