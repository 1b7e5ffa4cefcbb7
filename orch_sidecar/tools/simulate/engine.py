"""A model of a continuous-batching engine, step by step in virtual time.

Pure. It does what the scheduler of vLLM does with text requests and without a prefix cache:

- a step gives one token to each sequence that decodes, and what is left of its token budget to
  prompts: first those already begun, in order, then those of the waiting queue;
- of one prompt a step reads at most `long_prefill_tokens`, unless its sequence is alone;
- a sequence's first token comes in the step that reads the last of its prompt;
- the cache is taken in blocks. A waiting sequence begins only when the whole of what it has to
  read fits now; one that runs and finds no block takes those of the sequence that came last
  (of the lowest priority, if the engine goes by priority), which has to be read again.

A step takes t0 + c * b^alpha, b being the sequences that decode, and the time in which its
prompt tokens are read. Who comes while a step runs takes part from the next one on.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from random import Random


@dataclass(frozen=True, slots=True)
class EngineShape:
    """An engine. `kv_tokens`: the size of its cache, None for one that is never full.

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

    def step_ms(self, batch: int) -> float:
        """Milliseconds of a step in which `batch` sequences decode and nothing is read."""
        return self.t0_ms + (self.c_ms * float(batch**self.alpha) if batch else 0.0)


@dataclass(slots=True, eq=False)
class Sequence:
    """One sequence: `prompt` tokens to read, `output` tokens to make. Lower `priority` first."""

    order: int
    prompt: int
    output: int
    priority: int = 0
    began_at: float | None = None  # the step that first read of it
    first_token_at: float | None = None
    ended_at: float | None = None
    preempted: int = 0
    # The engine's own.
    to_read: int = 0
    cached: int = 0  # tokens in the cache; while it decodes, when it began to
    chunk: int = 0  # prompt tokens of the current step
    made: int = 0  # tokens made; while it decodes, when it began to
    decodes_since: int | None = None  # a step


class Engine:
    """The engine at one moment. The caller keeps the time: begin_step says how long it takes."""

    def __init__(self, shape: EngineShape, seed: int = 0) -> None:
        self.shape = shape
        self.steps = 0
        self.tokens = 0  # made since the start
        self.decoding = 0
        self.largest = 0  # batch that ever decoded
        self.preemptions = 0
        self._random = Random(seed)  # noqa: S311 (a model, no secret)
        self._waiting: list[tuple[int, int, Sequence]] = []
        self._running: dict[int, Sequence] = {}
        self._reading: list[Sequence] = []
        self._ends: list[tuple[int, int, Sequence]] = []
        # How many decoding sequences take a block in the steps of each residue.
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
        """Sequences whose prompts have not been read to their ends."""
        return len(self._waiting) + len(self._reading)

    @property
    def kv_usage(self) -> float:
        return 1 - self._free / self._blocks if self._blocks else 0.0

    def add(self, sequence: Sequence) -> None:
        """A sequence comes. ValueError if the cache could never hold the whole of it."""
        whole = self._blocks_of(sequence.prompt + sequence.output)
        if self._blocks is not None and whole > self._blocks:
            raise ValueError(
                f"a sequence of {sequence.prompt} + {sequence.output} tokens can never fit in a "
                f"cache of {self.shape.kv_tokens}"
            )
        sequence.to_read = sequence.prompt
        self._wait(sequence)

    def begin_step(self, now: float) -> float | None:
        """Schedules a step; returns its seconds, None if there is nothing to do."""
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
        return seconds

    def end_step(self, now: float) -> list[Sequence]:
        """The step is over: its tokens are out. Returns who has ended with it."""
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

    def _wait(self, sequence: Sequence) -> None:
        priority = sequence.priority if self.shape.by_priority else 0
        heappush(self._waiting, (priority, sequence.order, sequence))

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
        """Gives a prompt its part of this step; returns the tokens, 0 if it got none."""
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
        """After this step, or `unfinished` (1) before it made its token in it."""
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
        """Of the steps in which it takes a block: where its cached tokens fill theirs."""
        assert sequence.decodes_since is not None
        return (sequence.decodes_since + 1 - sequence.cached) % self.shape.block_tokens

    def _preempt(self) -> Sequence:
        """Takes back the blocks of one that runs; it will be read again, and goes on then."""
        if self.shape.by_priority:
            victim = max(self._running.values(), key=lambda each: (each.priority, each.order))
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
