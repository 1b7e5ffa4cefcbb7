"""Every threshold by which measurements are judged, with its reason: one table.

Pure. The page on measuring prints it (`docs/explanation/labels.md`). Where copies of a rule
once differed, the stricter holds, unless the reason names the recorded run that it would refuse.
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
    "`batched_online` and `offline` need at least this share with sequences of several requests: "
    "with fewer the column `batch` rounds to the 1 of a single user. The recorded runs that share "
    "the least have 0.63 (`vllm_bench_cloud`) and 0.85 (traced, `offline`)",
)  # fmt: skip
LACKING: Final = Threshold(
    0.1, "of the sequences",
    "of those that slots, work and memory allow an offline run, as many may be missing until the "
    "last one arrives: requests do not arrive in one instant, and a client takes a moment between "
    "two of them",
)  # fmt: skip
DECODED_SHARE: Final = Threshold(
    0.5, "of the tokens",
    "an offline batch below slots and work is explained by prompts where fewer of the tokens after "
    "the first came from steps that only decode",
)  # fmt: skip
QUEUED_STEPS: Final = Threshold(
    2, "steps", "a longer wait in the engine is a queue, a shorter one is for the step that runs"
)
UNEXPLAINED_WAIT: Final = Threshold(
    0.05, "of the latencies",
    "a single-stream run may wait as long for admission while nothing traced is in the engine: a "
    "longer wait is for somebody else's request (the recorded `home` has 0.01)",
)  # fmt: skip

# Whose work it was.
CHUNK_ENDS: Final = Threshold(
    0.02, "of the prompt tokens",
    "as many may be the only one of their prompt in a step, which vLLM counts like a generated one",
)  # fmt: skip
FAILED_SHARE: Final = Threshold(
    0.01, "of the generated tokens",
    "as many of finished sequences may be of answers that failed on their way to the client: the "
    "engine aborts all other failed requests",
)  # fmt: skip

# Clocks.
CLOCKS_AGREE_S: Final = Threshold(
    1.0, "s", "clocks of two hosts, and two clocks of one engine, agree: NTP keeps milliseconds"
)
FUTURE_S: Final = Threshold(
    300, "s",
    "by so much a statement may be ahead of the machine that verifies it: hosts without NTP are "
    "minutes off, and a run of a later day has not happened",
)  # fmt: skip
CLOCK_RATE: Final = Threshold(
    0.001, "of a time", "two clocks run at rates that differ less: NTP slews one by 0.05 %"
)
ROUNDING_S: Final = Threshold(0.001, "s", "times of spans and of signed sequences are as exact")
MOST_AGE_S: Final = Threshold(
    3.0, "s",
    "a saved state of an engine is no older: engines report each second, and are stale after this",
)  # fmt: skip
BUSY_SHARE: Final = Threshold(
    0.02, "of the window", "by so much an engine may have been busy for longer than a run took"
)
BUSY_S: Final = Threshold(0.25, "s", "and by this: its last step may outlast the last token")

# A client at the far end of a network.
WINDOW_SHARE: Final = Threshold(
    0.02, "of the window", "the client's window and throughput are those of the engine but for this"
)
WINDOW_S: Final = Threshold(0.5, "s", "and its window may be longer by this")
LAST_STEP_TOKENS: Final = Threshold(
    8, "tokens",
    "of a last step, or one step as slow as these: a client may have seen an answer end so much "
    "earlier, as a token without text makes no event",
)  # fmt: skip
NOTED_LATE_S: Final = Threshold(
    0.1, "s",
    "an engine notes arrivals and ends late by no more: it takes them from when it read the "
    "results of a step",
)  # fmt: skip
CLIENT_LATE_S: Final = Threshold(
    0.01, "s", "a client that sends its requests later (p99) did not keep its schedule"
)
CLIENT_LATE_SHARE: Final = Threshold(
    0.01, "of the window", "but one that sends everything at once may take as long"
)
UNLIKELY: Final = Threshold(
    1e-9, "chance", "arrivals that an honest run has more rarely are not believed"
)

THRESHOLDS: Final = {
    name.lower(): each for name, each in list(globals().items()) if isinstance(each, Threshold)
}
