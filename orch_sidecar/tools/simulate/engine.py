"""A model of a continuous-batching engine, step by step in virtual time.

It follows vLLM's scheduler for text requests without a prefix cache:

- a step generates one token for each decoding sequence and spends the rest of its token budget on
  prompts: first those in progress, in order, then those of the waiting queue;
- a step prefills at most `long_prefill_tokens` of one prompt, unless its sequence is alone;
- the step that prefills the end of a prompt generates the first token;
- the KV cache is allocated in blocks. A waiting sequence starts only if all its tokens to prefill
  fit now; a running one without a free block preempts the sequence that arrived last (of the
  lowest priority, if the engine schedules by priority), which has to be prefilled again.

A step takes t0 + c * b^alpha for b decoding sequences, plus the time of its prompt tokens. A
sequence that arrives during a step takes part from the next one on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from random import Random
from typing import Any, Self

from vllm_plugin.contracts.profile import SLOTS_ARGUMENT, Profile
from vllm_plugin.contracts.token_time import TokenTimes, Traffic


@dataclass(frozen=True, slots=True)
class EngineShape:
    """The parameters of an engine. `kv_tokens`: the size of its KV cache, None for unlimited.

    `step_tokens` and `long_prefill_tokens`: vLLM's max_num_batched_tokens and
    long_prefill_token_threshold. `noise`: sigma of the lognormal factor on each step's time.
    """

    slots: int = 16
    t0_ms: float = 8.0
    c_ms: float = 0.2
    alpha: float = 0.9
    prefill_tokens_per_s: float = 25_000.0
    kv_tokens: int | None = None
    block_tokens: int = 16
    step_tokens: int = 2048
    long_prefill_tokens: int = 512
    noise: float = 0.0
    by_priority: bool = True

    @classmethod
    def of(
        cls,
        profile: Profile | None,
        slots: int | None = None,
        step_tokens: int | None = None,
        long_prefill_tokens: int | None = None,
        **others: Any,
    ) -> Self:
        """Returns an engine: what is None is the profile's, or the default of the model."""

        def argument(name: str, given: int | None, default: int) -> int:
            rule = None if profile is None else profile.engine.get(name)
            return given if given is not None else int(rule.value) if rule else default

        plain = cls(**others)
        step = argument("max_num_batched_tokens", step_tokens, plain.step_tokens)
        chunk = argument("long_prefill_token_threshold", long_prefill_tokens, step)
        return replace(
            plain,
            slots=argument(SLOTS_ARGUMENT, slots, plain.slots),
            step_tokens=step,
            long_prefill_tokens=min(step, chunk),
        )

    def step_ms(self, batch: float) -> float:
        """Returns the milliseconds of a step that decodes `batch` sequences without prefill."""
        return self.t0_ms + (self.c_ms * float(batch**self.alpha) if batch else 0.0)


@dataclass(slots=True, eq=False)
class Sequence:
    """A sequence of `prompt` tokens to prefill and `output` to generate. Lower `priority` first.

    `order`: its number, chosen by the caller."""

    order: int
    prompt: int
    output: int
    priority: int = 0
    began_at: float | None = None  # the first step of its prefill
    first_token_at: float | None = None
    ended_at: float | None = None
    preempted: int = 0
    # State of the engine.
    place: int = 0  # in the order of arrival
    to_read: int = 0  # tokens left to prefill
    cached: int = 0  # tokens in the KV cache; while decoding, those at its start
    chunk: int = 0  # prompt tokens of the current step
    made: int = 0  # tokens generated; while decoding, those at its start
    decodes_since: int | None = None  # the step at which decoding started


class Engine:
    """The state of an engine. The caller advances the time by what begin_step returns."""

    def __init__(self, shape: EngineShape, seed: int = 0) -> None:
        self.shape = shape
        self.steps = 0
        self.tokens = 0  # generated since the start
        self.decoding = 0
        self.largest = 0  # batch so far
        self.preemptions = 0
        self.token_times = TokenTimes()
        self._random = Random(seed)  # noqa: S311 (a model, no secret)
        self._waiting: list[tuple[int, int, Sequence]] = []
        self._added = 0
        self._running: dict[int, Sequence] = {}
        self._reading: list[Sequence] = []
        self._ends: list[tuple[int, int, Sequence]] = []
        # Decoding sequences that need a new block, by step number modulo the block size.
        self._growing = [0] * shape.block_tokens
        kv_tokens = shape.kv_tokens
        self._blocks = None if kv_tokens is None else kv_tokens // shape.block_tokens
        self._free = self._blocks or 0
        self._step_s = [shape.step_ms(batch) / 1000 for batch in range(shape.slots + 1)]

    @property
    def held(self) -> int:
        """Sequences in the engine, running or waiting."""
        return len(self._running) + len(self._waiting)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def prefilling(self) -> int:
        """Sequences whose prefill is not complete."""
        return len(self._waiting) + len(self._reading)

    @property
    def unread(self) -> int:
        """Tokens that are left to prefill, of all sequences."""
        waiting = sum(each.to_read for _, _, each in self._waiting)
        return waiting + sum(each.to_read for each in self._reading)

    @property
    def kv_usage(self) -> float:
        return 1 - self._free / self._blocks if self._blocks else 0.0

    def add(self, sequence: Sequence) -> None:
        """Adds a sequence. Raises ValueError if it can never fit in the KV cache."""
        whole = self._blocks_of(sequence.prompt + sequence.output)
        if self._blocks is not None and whole > self._blocks:
            raise ValueError(
                f"a sequence of {sequence.prompt} + {sequence.output} tokens can never fit in a "
                f"cache of {self.shape.kv_tokens}: raise --kv-tokens or shorten the requests"
            )
        self._added += 1
        sequence.place, sequence.to_read = self._added, sequence.prompt
        self._wait(sequence)

    def begin_step(self, now: float) -> float | None:
        """Schedules a step; returns its seconds, None if the engine is idle."""
        if not self._running and not self._waiting:
            return None
        shape = self.shape
        self.steps += 1
        threshold = shape.long_prefill_tokens if self.held > 1 else shape.step_tokens
        before = self.preemptions
        self._free -= self._growing[self.steps % shape.block_tokens]
        while self._blocks is not None and self._free < 0:
            self._preempt()
        budget = shape.step_tokens - self.decoding
        for sequence in tuple(self._reading):
            if sequence.order in self._running:
                budget -= self._read(sequence, min(threshold, budget))
        if self.preemptions == before:
            self._begin_waiting(threshold, budget, now)
        read = sum(sequence.chunk for sequence in self._reading)
        self.largest = max(self.largest, self.decoding)
        seconds = self._step_s[self.decoding] + read / shape.prefill_tokens_per_s
        if shape.noise:
            seconds *= self._random.lognormvariate(0.0, shape.noise)
        prompt_s = read / shape.prefill_tokens_per_s
        batch = self.decoding + len(self._reading)
        self.token_times.record(now + seconds, seconds, batch, self.decoding, prompt_s)
        return seconds

    def traffic(self, now: float) -> Traffic:
        """Returns what prompts and noise add to the time per token, as the plugin measures it."""
        return self.token_times.traffic(lambda batch: self.shape.step_ms(batch) / 1000, now)

    def end_step(self, now: float) -> list[Sequence]:
        """Ends the step; returns the sequences that ended with it."""
        ended = []
        self.tokens += self.decoding
        while self._ends and self._ends[0][0] <= self.steps:
            at, _, sequence = heappop(self._ends)
            if sequence.decodes_since is not None and self._ends_at(sequence) == at:
                self._stop_decoding(sequence)
                ended.append(sequence)
        if self._reading:
            ended += self._end_reading(now)
        for sequence in ended:
            del self._running[sequence.order]
            self._free += self._blocks_of(sequence.cached)
            sequence.ended_at = now
        return ended

    def abort(self, sequence: Sequence) -> bool:
        """Ends a sequence between two steps; its tokens do not count. False: it had ended."""
        if self._running.pop(sequence.order, None) is None:
            waits = [each for each in self._waiting if each[2] is sequence]
            for each in waits:
                self._waiting.remove(each)
            heapify(self._waiting)
            return bool(waits)
        if sequence.decodes_since is None:
            self._reading.remove(sequence)
        else:
            self._stop_decoding(sequence)
        self._free += self._blocks_of(sequence.cached)
        self.tokens -= sequence.made
        return True

    def _wait(self, sequence: Sequence) -> None:
        priority = sequence.priority if self.shape.by_priority else 0
        heappush(self._waiting, (priority, sequence.place, sequence))

    def _begin_waiting(self, threshold: int, budget: int, now: float) -> None:
        while self._waiting and budget > 0 and len(self._running) < self.shape.slots:
            sequence = self._waiting[0][2]
            if self._blocks is not None and self._blocks_of(sequence.to_read) > self._free:
                break
            heappop(self._waiting)
            self._running[sequence.order] = sequence
            self._reading.append(sequence)
            if sequence.began_at is None:
                sequence.began_at = now
            budget -= self._read(sequence, min(threshold, budget))

    def _read(self, sequence: Sequence, most: int) -> int:
        """Schedules a chunk of a prompt in this step; returns its tokens, 0 if preempted."""
        chunk = max(0, min(sequence.to_read, most))
        needed = self._blocks_of(sequence.cached + chunk) - self._blocks_of(sequence.cached)
        while self._blocks is not None and needed > self._free:
            if self._preempt() is sequence:
                return 0
        self._free -= needed
        sequence.chunk = chunk
        return chunk

    def _end_reading(self, now: float) -> list[Sequence]:
        ended, still = [], []
        for sequence in self._reading:
            sequence.cached += sequence.chunk
            sequence.to_read -= sequence.chunk
            sequence.chunk = 0
            if sequence.to_read:
                still.append(sequence)
                continue
            sequence.made += 1
            self.tokens += 1
            if sequence.first_token_at is None:
                sequence.first_token_at = now
            if sequence.made >= sequence.output:
                ended.append(sequence)
            else:
                self._start_decoding(sequence)
        self._reading = still
        return ended

    def _start_decoding(self, sequence: Sequence) -> None:
        sequence.decodes_since = self.steps
        self.decoding += 1
        self._growing[self._residue(sequence)] += 1
        heappush(self._ends, (self._ends_at(sequence), sequence.order, sequence))

    def _stop_decoding(self, sequence: Sequence, unfinished: int = 0) -> None:
        """Stops after this step; `unfinished`: 1 if its token of this step is not generated."""
        assert sequence.decodes_since is not None
        self._growing[self._residue(sequence)] -= 1
        self.decoding -= 1
        done = self.steps - sequence.decodes_since
        sequence.cached += done
        sequence.made += done - unfinished
        sequence.decodes_since = None

    def _ends_at(self, sequence: Sequence) -> int:
        assert sequence.decodes_since is not None
        return sequence.decodes_since + sequence.output - sequence.made

    def _residue(self, sequence: Sequence) -> int:
        """Returns the step number, modulo the block size, at which it needs a new block."""
        assert sequence.decodes_since is not None
        return (sequence.decodes_since + 1 - sequence.cached) % self.shape.block_tokens

    def _preempt(self) -> Sequence:
        """Preempts a running sequence: frees its blocks and queues it to be prefilled again."""
        if self.shape.by_priority:
            victim = max(self._running.values(), key=lambda each: (each.priority, each.place))
        else:
            victim = next(reversed(self._running.values()))
        del self._running[victim.order]
        if victim.decodes_since is None:
            self._reading.remove(victim)
        else:
            self._stop_decoding(victim, unfinished=1)
        self._free += self._blocks_of(victim.cached + victim.chunk)
        victim.cached = victim.chunk = 0
        victim.to_read = victim.prompt + victim.made
        victim.preempted += 1
        self.preemptions += 1
        self._wait(victim)
        return victim

    def _blocks_of(self, tokens: int) -> int:
        return -(-tokens // self.shape.block_tokens)
