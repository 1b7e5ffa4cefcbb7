"""Every threshold by which a label is judged, with its reason: `docs/explanation/labels.md` has it.

Pure. How long a run has to be before it is more than preliminary, MLPerf says (`publication`).
"""

from __future__ import annotations

from typing import Final


class Threshold(float):
    """A number with its unit, what it bounds, and why it is that number."""

    unit: str
    bounds: str

    def __new__(cls, value: float, unit: str, bounds: str) -> Threshold:
        made = super().__new__(cls, value)
        made.unit, made.bounds = unit, bounds
        return made


# What a label requires.
SHARED_STEPS: Final = Threshold(
    0.5, "of the decode steps",
    "`batched_online` and `offline` need at least this share of steps with several requests: with "
    "fewer the column `batch` would round to 1, as for a single user. The lowest recorded runs "
    "have 0.63 (`vllm_bench_cloud`), 0.85 (traced, `offline`) and 0.86 (signed, `beside_prompts`)",
)  # fmt: skip
LACKING: Final = Threshold(
    0.1, "of the sequences",
    "an offline run may lack this share of the sequences that slots, work and memory allow, until "
    "the last one arrives: requests do not arrive in one instant, and a client takes a moment "
    "between two of them. Requests that came within this share of a run came all at once",
)  # fmt: skip
DECODED_SHARE: Final = Threshold(
    0.5, "of the tokens",
    "prompts explain an offline batch below slots and work if a smaller share of the tokens after "
    "the first came from steps that only decode",
)  # fmt: skip
QUEUED_STEPS: Final = Threshold(
    2, "steps", "a longer wait in the engine is a queue; a shorter one is for the running step"
)
UNEXPLAINED_WAIT: Final = Threshold(
    0.05, "of the latencies",
    "a single-stream run may wait this share for admission while no traced request is in the "
    "engine: a longer wait is for somebody else's request (the recorded `home` has 0.01)",
)  # fmt: skip

# Whose work it was.
CHUNK_ENDS: Final = Threshold(
    0.02, "of the prompt tokens",
    "this share may be the only token of its prompt in a step, which vLLM counts as generated",
)  # fmt: skip
FAILED_SHARE: Final = Threshold(
    0.01, "of the generated tokens",
    "this share may belong to answers that failed on their way to the client: the engine aborts "
    "all other failed requests",
)  # fmt: skip

# Clocks.
CLOCKS_AGREE_S: Final = Threshold(
    1.0, "s", "clocks of two hosts, or two clocks of one engine, may differ: NTP keeps milliseconds"
)
FUTURE_S: Final = Threshold(
    300, "s",
    "a statement may be ahead of the verifying machine's clock: hosts without NTP are minutes off, "
    "and a run of a later day has not happened",
)  # fmt: skip
CLOCK_RATE: Final = Threshold(
    0.001, "of a time", "the rates of two clocks may differ: NTP slews one by 0.05 %"
)
ROUNDING_S: Final = Threshold(0.001, "s", "times of spans and signed sequences are this exact")
MOST_AGE_S: Final = Threshold(
    3.0, "s",
    "greatest age of a saved engine state: engines report each second, and are stale after this",
)  # fmt: skip
BUSY_SHARE: Final = Threshold(
    0.02, "of the window", "an engine may have been busy for longer than the run took by this"
)
BUSY_S: Final = Threshold(0.25, "s", "and by this: its last step may outlast the last token")
FIRST_TOKENS: Final = Threshold(
    0.5, "of the engine's time for prompts",
    "the times to the first token of all requests are together no less than this, without "
    "preemptions: each contains that of its own prompt (the recorded runs have 1.36 to 7.6)",
)  # fmt: skip

# A client at the far end of a network.
WINDOW_SHARE: Final = Threshold(
    0.02, "of the window", "the client's window and throughput may differ from the engine's by this"
)
WINDOW_S: Final = Threshold(0.5, "s", "and the client's window may be longer by this")
LAST_STEP_TOKENS: Final = Threshold(
    8, "tokens",
    "a client may see an answer end earlier by these tokens of a last step, or by one step as slow "
    "as them: a token without text makes no event",
)  # fmt: skip
NOTED_LATE_S: Final = Threshold(
    0.1, "s",
    "an engine may note arrivals and ends late by this: it notes them when it reads the results of "
    "a step",
)  # fmt: skip
CLIENT_LATE_S: Final = Threshold(
    0.01, "s", "a client that sends its requests later than this (p99) missed its schedule"
)
CLIENT_LATE_SHARE: Final = Threshold(
    0.01, "of the window", "but a client that sends everything at once may take this long"
)
RECORDED_S: Final = Threshold(
    2e-6, "s", "two times of a client are this exact together: each is rounded to a microsecond"
)
FOLLOWED: Final = Threshold(
    0.25, "of the mean gap",
    "requests by random gaps come this soon after ends of answers by chance only",
)  # fmt: skip
UNLIKELY: Final = Threshold(
    1e-9, "chance", "arrivals that are rarer than this in an honest run are not believed"
)

# How requests came, as traces show it: a note of the row.
SHOWN_ARRIVALS: Final = Threshold(
    10,
    "requests",
    "fewer, in all or after others, show it by chance: the row then has no `arrivals`",
)
PAUSE_SHARE: Final = Threshold(
    0.05, "of the median latency", "a client in a closed loop sends within this after an answer"
)
PAUSE_S: Final = Threshold(0.05, "s", "or within this")
CLOSED_SHARE: Final = Threshold(
    0.9, "of the requests", "come so in a closed loop: some clients pause longer, or leave earlier"
)

THRESHOLDS: Final = {
    name.lower(): each for name, each in list(globals().items()) if isinstance(each, Threshold)
}
