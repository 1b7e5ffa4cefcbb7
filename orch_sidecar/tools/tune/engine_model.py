"""What is known of one engine: its step time, prefill and memory, and the engine to simulate.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from orch_sidecar.tools.simulate.engine import EngineShape
from orch_sidecar.tools.tune.memory import MemoryBound, memory_bound
from orch_sidecar.tools.tune.steps import StepCurve
from vllm_plugin.contracts.profile import Profile


@dataclass(frozen=True, slots=True)
class EngineModel:
    """One engine. `source`: of these values, in words. What is not known is None.

    `step_tokens`, `chunk_tokens`: of the engine as it runs; None: those of a profile.
    `accelerators`: that it is spread over, 0 without one.
    """

    source: str
    curve: StepCurve
    prefill_tokens_per_s: float | None
    memory: MemoryBound | None = None
    kv_tokens: int | None = None
    step_tokens: int | None = None
    chunk_tokens: int | None = None
    accelerators: int = 0

    def shape(self, profile: Profile | None = None, slots: int | None = None) -> EngineShape:
        """Returns the engine to simulate. Prompts take no time where prefill is not known.

        `profile`: has what is not known, and the slots if they are None.
        """
        fit = self.curve.fit
        return EngineShape.of(
            profile,
            slots,
            self.step_tokens,
            self.chunk_tokens,
            t0_ms=fit.t0,
            c_ms=fit.c,
            alpha=fit.alpha,
            prefill_tokens_per_s=self.prefill_tokens_per_s or inf,
            kv_tokens=self.kv_tokens,
        )


def model_of(
    entry: Mapping[str, Any], tokens: int, curve: StepCurve, prefill_tokens_per_s: float | None
) -> EngineModel:
    """Returns the model of a running engine, from its entry in `/v1/capabilities`.

    `tokens`: mean context of a request, for the memory bound.
    """
    features = entry.get("features", {})
    return EngineModel(
        f"{entry.get('gpu') or 'an engine'}, as its /v1/capabilities reports",
        curve,
        prefill_tokens_per_s,
        memory_bound(entry, tokens),
        entry.get("kv_tokens_total") or None,
        features.get("max_num_batched_tokens") or None,
        features.get("long_prefill_token_threshold") or None,
        entry.get("gpu_count") or 0,
    )
