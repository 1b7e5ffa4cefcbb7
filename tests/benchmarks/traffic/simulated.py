"""The same traces in virtual time, beside the clairvoyant policy."""

from __future__ import annotations

from typing import Any, Final

from orch_sidecar.tools.simulate.compare import (
    Policy,
    Scenario,
    capacity,
    compare,
    figures,
    table,
    unloaded_ttft_p95_ms,
    with_slo,
)
from orch_sidecar.tools.simulate.engine import EngineShape
from tests.benchmarks.clairvoyant.search import best_course
from tests.benchmarks.policy.record import Record, verdict
from tests.benchmarks.traffic.scenarios import SEED, Files, Kind, clients, rate_of, seconds_of
from vllm_plugin.contracts import profile
from vllm_plugin.contracts.profile import ServiceClass

INTERACTIVE: Final = ServiceClass.INTERACTIVE
CLAIRVOYANT: Final = "clairvoyant"
OF_CLAIRVOYANT: Final = 0.85
# Of the small model on two cores, where no engine is measured.
SMALL: Final = EngineShape(
    16, t0_ms=12, c_ms=3.4, alpha=0.6, prefill_tokens_per_s=1000,
    step_tokens=256, long_prefill_tokens=64,
)  # fmt: skip


def shape_of(entry: dict[str, Any], plain: EngineShape = SMALL) -> EngineShape:
    """Returns the engine as its capabilities describe it, as far as they do."""
    step = entry.get("step_time") or {}
    rate = entry.get("prefill_tokens_per_s")
    return EngineShape(
        entry.get("slots_total", plain.slots),
        t0_ms=step.get("t0_ms", plain.t0_ms),
        c_ms=step.get("c_ms", plain.c_ms),
        alpha=step.get("alpha", plain.alpha),
        prefill_tokens_per_s=rate or plain.prefill_tokens_per_s,
        step_tokens=plain.step_tokens,
        long_prefill_tokens=plain.long_prefill_tokens,
    )


def simulate(
    kind: Kind, files: Files, shape: EngineShape, seconds: float, slo_times: float, record: Record
) -> None:
    """Compares the policy with the others and with the clairvoyant one, and judges it."""
    replay = files.replay(kind.trace)
    slo_ms = slo_times * unloaded_ttft_p95_ms(shape, replay, SEED)
    rules = with_slo(profile.load("cloud").admission, {"ttft": slo_ms})
    rate = rate_of(kind, replay, capacity(shape, replay, SEED))
    lasts_s = seconds_of(kind, replay, seconds)
    scenario = Scenario(shape, replay, rate, lasts_s, SEED, clients=clients(kind))
    found = compare(scenario, rules, list(Policy))
    found[CLAIRVOYANT] = figures(best_course(scenario, rules), {INTERACTIVE: slo_ms})
    print(f"\n{kind.name}, simulated: {rate:.1f} requests/s, SLO {slo_ms:.0f} ms")
    print(table(found), flush=True)
    good = {name: each.classes[INTERACTIVE].goodput_per_s for name, each in found.items()}
    record.results[f"{kind.name}, simulated"] = {
        "shape": {name: getattr(shape, name) for name in shape.__slots__},
        "rate_per_s": rate,
        "slo_ms": slo_ms,
        "goodput_per_s": good,
        "tokens_per_s": {name: each.tokens_per_s for name, each in found.items()},
    }
    ratio = good[Policy.POLICY] / good[CLAIRVOYANT] if good[CLAIRVOYANT] else None
    name = f"{kind.name}, simulated"
    record.judge(verdict(f"{name}: goodput over the clairvoyant's", ratio, OF_CLAIRVOYANT))
    tokens = found[Policy.POLICY].tokens_per_s / found[Policy.DIRECT].tokens_per_s
    record.judge(verdict(f"{name}: tokens/s over direct", tokens, 0.97, ".3f"))
