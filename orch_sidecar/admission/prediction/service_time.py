"""What will happen: how long requests take, and when those who wait will start.

Pure: `now` is an argument in seconds. Knows who runs and how long their like took; built from
the measured step time, so without one it says that it does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from orch_sidecar.admission.constraints.kv_cache import NO_NEED, KvNeed
from orch_sidecar.admission.ledger import Ledger
from orch_sidecar.admission.prediction.output_lengths import OutputLengths
from orch_sidecar.admission.prediction.schedule import Schedule
from orch_sidecar.admission.types import AdmissionRequest, StepTime
from vllm_plugin.profile import ServiceClass

# A plan is made anew after that, or after any change while few wait.
FRESH_S: Final = 0.02
FEW: Final = 32

# How far the measured step time may be from what requests see of it: prompts of others are
# read between their steps, and machines are shared.
_SLOWEST, _FASTEST = 10.0, 0.1
_LEARNING: Final = 0.1
# Once much is known, so many answers a second say as much as all of them.
_ENOUGH: Final = 1000
_LEARN_EVERY_S: Final = 0.005


@dataclass(slots=True)
class RunningRequest:
    """A request in the engine. `need`: what was counted for it of the KV cache."""

    ask: AdmissionRequest
    granted: float
    need: KvNeed = NO_NEED


@dataclass(frozen=True, slots=True)
class Forecast:
    """Milliseconds from now to its slot, to its first token and to its end."""

    start_ms: float
    first_token_ms: float
    end_ms: float


class ServiceTimes:
    """Foresees the queue of one engine."""

    def __init__(self, ledger: Ledger) -> None:
        self.lengths = OutputLengths()
        self.runs: dict[str, RunningRequest] = {}  # who is in the engine, by lease
        self.step_time: StepTime | None = None
        self.prefill_tokens_per_s: float | None = None
        self._ledger = ledger
        self._slowness = 1.0
        self._learned = 0
        self._learned_at = float("-inf")
        self._interactive: Schedule | None = None
        self._bulk: Schedule | None = None
        self._made_at = float("-inf")
        self._made_of: ServiceClass | None = None
        self._changed = True

    def changed(self) -> None:
        """Somebody started, ended or left."""
        self._changed = True

    def learns(self, now: float) -> bool:
        """Whether an answer that ends now would say something new."""
        return self._learned <= _ENOUGH or now >= self._learned_at

    def ended(self, run: RunningRequest, now: float, output_tokens: float | None) -> None:
        """A request ended of itself after so many tokens (per sequence): learns from it."""
        if output_tokens is None or not self.learns(now):
            return
        self._learned += 1
        self._learned_at = now + _LEARN_EVERY_S
        self.lengths.learn(run.ask.service_class, run.ask.max_tokens, output_tokens)
        token_s = self._token_s(run.ask.cost)
        if token_s is None or output_tokens < 2:
            return
        foreseen = self._prefill_s(run.ask) + output_tokens * token_s
        ratio = (now - run.granted) / (foreseen * self._slowness)
        ratio = min(max(ratio, _FASTEST), _SLOWEST)
        self._slowness *= 1 + _LEARNING * (ratio - 1)
        self._slowness = min(max(self._slowness, _FASTEST), _SLOWEST)

    def first_token_s(self, ask: AdmissionRequest) -> float | None:
        """From its slot to its first token."""
        step_s = self._step_s(ask.cost)
        return None if step_s is None else self._slowness * (self._prefill_s(ask) + step_s)

    def service_s(self, ask: AdmissionRequest, *, joins: bool = False) -> float | None:
        """From its slot to its end. `joins`: it takes a free slot, and so makes the batch larger;
        else it follows on another."""
        token_s = self._token_s(ask.cost if joins else 0)
        tokens = self.lengths.expected(ask.service_class, ask.max_tokens)
        if token_s is None or tokens is None:
            return None
        return self._slowness * (self._prefill_s(ask) + tokens * token_s)

    def remaining_s(self, run: RunningRequest, now: float) -> float | None:
        """How long a request that runs will go on."""
        token_s = self._token_s()
        if token_s is None:
            return None
        prefill_s, token_s = self._prefill_s(run.ask) * self._slowness, token_s * self._slowness
        decoding_s = now - run.granted - prefill_s
        ask = run.ask
        left = self.lengths.remaining(
            ask.service_class, ask.max_tokens, max(0.0, decoding_s) / token_s
        )
        return None if left is None else left * token_s + max(0.0, -decoding_s)

    def plan(
        self,
        service_class: ServiceClass,
        now: float,
        free: int,
        kept: int,
        only: ServiceClass | None,
        waiting: Callable[[ServiceClass], Iterable[AdmissionRequest]],
        few: bool,
    ) -> Schedule | None:
        """The slots as a request of this class will find them, behind those who wait.

        `free`: slots nobody has. `kept`: those of them that bulk requests do not get. `only`: the
        class whose ends count, None: both.
        """
        stale = (
            now - self._made_at > FRESH_S or (self._changed and few) or only is not self._made_of
        )
        if stale:
            self._make(now, free, only)
        plan = self._interactive
        if plan is None:
            return None
        if stale:
            for ask in waiting(ServiceClass.INTERACTIVE):
                self.placed(plan, ask)
            self._bulk = None
        if service_class is ServiceClass.INTERACTIVE:
            return plan
        if self._bulk is None:
            self._bulk = plan.copy(without=kept)
            for ask in waiting(ServiceClass.BULK):
                self.placed(self._bulk, ask)
        return self._bulk

    def placed(self, plan: Schedule, ask: AdmissionRequest) -> float | None:
        """Puts a request behind the others. Returns when it will start, None: unknown."""
        service_s = self.service_s(ask)
        return None if service_s is None else plan.place(ask.cost, service_s)

    def _make(self, now: float, free: int, only: ServiceClass | None) -> None:
        self._made_at, self._made_of, self._changed = now, only, False
        self._interactive = self._bulk = None
        times = [0.0] * free
        for run in self.runs.values():
            if only is not None and run.ask.service_class is not only:
                continue
            left = self.remaining_s(run, now)
            if left is None:
                return
            times += [left] * run.ask.cost
        self._interactive = Schedule(times)

    def _step_s(self, more: int) -> float | None:
        """A step of the sequences that have leases, and of so many more."""
        step_time = self.step_time
        return None if step_time is None else step_time.ms(self._batch(more)) / 1000

    def _token_s(self, more: int = 0) -> float | None:
        """What a token of each of those sequences takes: a step, or a part of one."""
        step_time = self.step_time
        return None if step_time is None else step_time.token_ms(self._batch(more)) / 1000

    def _batch(self, more: int) -> int:
        return max(1, self._ledger.leased + self._ledger.foreign + more)

    def _prefill_s(self, ask: AdmissionRequest) -> float:
        rate = self.prefill_tokens_per_s
        return ask.prompt_tokens / rate if rate else 0.0
