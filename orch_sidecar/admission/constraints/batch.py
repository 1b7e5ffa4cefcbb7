"""Decides how many sequences run at once, and how long bulk requests gather for a batch: from
the SLOs and the measured step time.

Pure. The step time is t_step(b) = t0 + c * b^alpha as the engine measured it. While it is unknown
nothing is guessed: the profile bounds the batches, and windows have their least length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from orch_sidecar.admission.types import StepTime
from vllm_plugin.profile import AdmissionRules, ClassRules, ServiceClass

# A fit is trusted up to this multiple of the largest batch that it was made from.
EXTRAPOLATION: Final = 2
# The share of the SLO left for what the step time does not include: the queue, the network, a
# slow step.
MARGIN: Final = 0.1


@dataclass(frozen=True, slots=True)
class Limits:
    """The current limits. Batches in sequences, windows in milliseconds.

    `interactive`: interactive sequences at once. `bulk`: the batch of both classes up to which
    bulk requests may fill the engine. `mixed`: the same while there is interactive traffic.
    `window_ms`: 0 where no window can open. `measured`: the step time is known.
    """

    interactive: int
    bulk: int
    mixed: int
    window_ms: float
    measured: bool

    def batch(self, service_class: ServiceClass) -> int:
        return self.interactive if service_class is ServiceClass.INTERACTIVE else self.bulk


def limits_for(rules: AdmissionRules, slots_total: int, step_time: StepTime | None) -> Limits:
    """Computes the limits of an engine with `slots_total` slots."""
    interactive = rules.of(ServiceClass.INTERACTIVE)
    bulk = rules.bulk
    interactive_step_ms = _step_ms(interactive, step_time)
    of_bulk = _batch(bulk, _step_ms(bulk, step_time), slots_total, step_time)
    # A first token takes the rest of the current step, and the next one.
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
    """The longest step within the SLO per token; a step can generate several of a sequence."""
    tpot_ms = rules.tpot_p95_ms
    return None if tpot_ms is None or step_time is None else tpot_ms * step_time.tokens


def _batch(
    rules: ClassRules, step_ms: float | None, slots_total: int, step_time: StepTime | None
) -> int:
    """The largest batch with a step of at most `step_ms`, within the profile's bounds and the
    slots."""
    most = min(rules.batch.most, slots_total)
    if step_time is None or step_ms is None:
        return most
    least = min(rules.batch.least, most)
    trusted = min(most, max(least, EXTRAPOLATION * step_time.largest))
    low, high = least, trusted
    while low < high:  # the step time grows with the batch
        middle = (low + high + 1) // 2
        if step_time.ms(middle) <= step_ms:
            low = middle
        else:
            high = middle - 1
    # All trusted batches keep the SLO, and larger ones are unknown: the profile's bound applies.
    return most if low == trusted and step_time.ms(trusted) <= step_ms else low


def _window_ms(rules: AdmissionRules, batch: int, step_time: StepTime | None) -> float:
    if rules.window_ms is None or batch < 2:  # a batch of one needs no window
        return 0.0
    least, most = float(rules.window_ms.least), float(rules.window_ms.most)
    if step_time is None:
        return least
    ttft_ms = rules.bulk.ttft_p95_ms
    if ttft_ms is None:
        return most
    slack_ms = ttft_ms * (1 - MARGIN) - step_time.ms(batch)
    return min(max(slack_ms, least), most)
