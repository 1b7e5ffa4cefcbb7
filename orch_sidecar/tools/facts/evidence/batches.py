"""Reads a batch that has ended, and its output file, as the sidecar's `/v1/batches` has them.

Pure. Its times are whole seconds, cut off: the window is the longest that they allow, from the
second in which the first row could run to the end of that in which the last one ended. So the
throughput is never too high, and by less than two seconds of the window too low.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import AliasChoices, Field, NonNegativeInt, PositiveInt

from orch_sidecar.tools.facts.evidence.imported import Fields, Rejection
from orch_sidecar.tools.facts.labels.documents import at
from orch_sidecar.tools.facts.labels.figures import Totals
from orch_sidecar.tools.facts.labels.load import Load
from orch_sidecar.tools.facts.labels.observation import Run
from orch_sidecar.tools.facts.tables.notes import Arrivals
from orch_sidecar.tools.facts.tables.row import Label


class _Usage(Fields):
    """The tokens of a row, by the names of chat and completions, or of responses."""

    prompt: NonNegativeInt = Field(validation_alias=AliasChoices("prompt_tokens", "input_tokens"))
    generated: NonNegativeInt = Field(
        validation_alias=AliasChoices("completion_tokens", "output_tokens")
    )


class _Answer(Fields):
    model: str = at("response.body.model", min_length=1)
    usage: _Usage = at("response.body.usage")


class _Batch(Fields):
    """A batch all of whose rows were answered, with the lines of its output. What a failed row
    generated is in no file: the tokens that the engine counted could not be compared."""

    status: Literal["completed"]
    began_at_s: NonNegativeInt = at("in_progress_at")
    ended_at_s: NonNegativeInt = at("finalizing_at")
    answered: PositiveInt = at("request_counts.completed")
    failed: Literal[0] = at("request_counts.failed")
    output: Sequence[_Answer]


def run(document: object) -> Run:
    """Returns the run of a batch, with the lines of its `output`, which claims to be offline: all
    rows are there when the first one runs. Raises Rejection and ValidationError."""
    batch = _Batch.model_validate(document)
    if len(batch.output) != batch.answered:
        raise Rejection("rows of the output", len(batch.output), f"must be {batch.answered}")
    models = sorted({each.model for each in batch.output})
    if len(models) > 1:
        raise Rejection("model", ", ".join(models), "must be one: a row is of one model")
    window_s = batch.ended_at_s - batch.began_at_s + 1
    if window_s < 1:
        raise Rejection("finalizing_at", batch.ended_at_s, f"must be after {batch.began_at_s}")
    return Run(
        named={"tool": "orch batch"},
        model=models[0],
        claim=Label.OFFLINE,
        load=Load(arrivals=Arrivals.AT_ONCE),
        totals=Totals(
            requests=batch.answered,
            window_s=window_s,
            input_tokens=sum(each.usage.prompt for each in batch.output),
            output_tokens=sum(each.usage.generated for each in batch.output),
        ),
        outcomes={"window_is": "the batch in whole seconds"},
        began_at_s=batch.began_at_s,
        ended_at_s=batch.ended_at_s,
    )
