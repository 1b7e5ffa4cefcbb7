"""How many sequences at once, and how long to gather them: from SLO and measured step time.

Pure. The step time is t_step(b) = t0 + c * b^alpha as the engine measured it. While it is not
known nothing is guessed: the batches are bounded by the profile, and the windows are shortest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from orch_sidecar.admission.types import StepTime
from vllm_plugin.profile import AdmissionRules, ClassRules, ServiceClass

# A fit says little about batches far beyond those it was made from; so far it is believed.
EXTRAPOLATION: Final = 2
# Of the SLO, kept for what the step time does not see: the queue, the network, a slow step.
MARGIN: Final = 0.1


@dataclass(frozen=True, slots=True)
class Limits:
    """What holds now. Batches in sequences, windows in milliseconds.

    `interactive`: interactive sequences at once. `bulk`: sequences of both classes at once, as
    far as bulk requests may fill them. `mixed`: the same while interactive requests wait or run.
    `window_ms`: for gathering bulk requests; 0 where no window can open.
    """

    interactive: int
    bulk: int
    mixed: int
    window_ms: float
    measured: bool

    def batch(self, service_class: ServiceClass) -> int:
        return self.interactive if service_class is ServiceClass.INTERACTIVE else self.bulk


def limits_for(rules: AdmissionRules, slots_total: int, step_time: StepTime | None) -> Limits:
    """The limits of an engine with so many slots."""
    interactive = rules.of(ServiceClass.INTERACTIVE)
    bulk = rules.bulk
    interactive_step_ms = _step_ms(interactive, step_time)
    of_bulk = _batch(bulk, _step_ms(bulk, step_time), slots_total, step_time)
    # A first token takes what is left of one step, and the next one.
    first_ms = interactive.ttft_p95_ms
    two_steps_ms = None if first_ms is None else first_ms * (1 - MARGIN) / 2
    mixed = min(
        _batch(bulk, interactive_step_ms, slots_total, step_time),
        _batch(bulk, two_steps_ms, slots_total, step_time),
    )
    return Limits(
        interactive=_batch(interactive, interactive_step_ms, slots_total, step_time),
        bulk=of_bulk,
        mixed=min(mixed, of_bulk),
        window_ms=_window_ms(rules, of_bulk, step_time),
        measured=step_time is not None,
    )


def _step_ms(rules: ClassRules, step_time: StepTime | None) -> float | None:
    """How long a step may take within the SLO per token: it can make several of a sequence."""
    tpot_ms = rules.tpot_p95_ms
    return None if tpot_ms is None or step_time is None else tpot_ms * step_time.tokens


def _batch(
    rules: ClassRules, step_ms: float | None, slots_total: int, step_time: StepTime | None
) -> int:
    """The largest batch whose step keeps `step_ms`, within the profile's bounds and the slots."""
    most = min(rules.batch.most, slots_total)
    if step_time is None or step_ms is None:
        return most
    least = min(rules.batch.least, most)
    believed = min(most, max(least, EXTRAPOLATION * step_time.largest))
    low, high = least, believed
    while low < high:  # the step time grows with the batch
        middle = (low + high + 1) // 2
        if step_time.ms(middle) <= step_ms:
            low = middle
        else:
            high = middle - 1
    # All that is believed keeps it, and more is not known: then the bound is the profile's.
    return most if low == believed and step_time.ms(believed) <= step_ms else low


def _window_ms(rules: AdmissionRules, batch: int, step_time: StepTime | None) -> float:
    if rules.window_ms is None or batch < 2:  # what is alone in its batch is not gathered
        return 0.0
    least, most = float(rules.window_ms.least), float(rules.window_ms.most)
    if step_time is None:
        return least
    ttft_ms = rules.bulk.ttft_p95_ms
    if ttft_ms is None:
        return most
    slack_ms = ttft_ms * (1 - MARGIN) - step_time.ms(batch)
    return min(max(slack_ms, least), most)
