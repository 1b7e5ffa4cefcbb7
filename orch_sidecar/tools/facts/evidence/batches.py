"""Reads a batch that has ended, and its output file, as the sidecar's `/v1/batches` has them.

Pure. Its times are whole seconds, cut off: the window is the longest that they allow, from the
second in which the first row could run to the end of that in which the last one ended. So the
throughput is never too high, and by less than two seconds of the window too low.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import AliasChoices, Field

from orch_sidecar.tools.facts.evidence.imported import Count, Fields, Rejection
from orch_sidecar.tools.facts.labels.documents import at
from orch_sidecar.tools.facts.labels.figures import Totals
from orch_sidecar.tools.facts.labels.load import Load
from orch_sidecar.tools.facts.labels.measured import Run
from orch_sidecar.tools.facts.labels.observation import RunTimes
from orch_sidecar.tools.facts.tables.notes import Arrivals
from orch_sidecar.tools.facts.tables.row import Label


class Batch(Fields):
    """A batch all of whose rows were answered. What a failed row generated is in no file: the
    tokens that the engine counted could not be compared."""

    status: Literal["completed"]
    began_at_s: Count = at("in_progress_at")
    ended_at_s: Count = at("finalizing_at")
    answered: int = at("request_counts.completed", ge=1)
    failed: Literal[0] = at("request_counts.failed")
    output_file_id: str


class _Usage(Fields):
    """The tokens of a row, by the names of chat and completions, or of responses."""

    prompt: Count = Field(validation_alias=AliasChoices("prompt_tokens", "input_tokens"))
    generated: Count = Field(validation_alias=AliasChoices("completion_tokens", "output_tokens"))


class _Answer(Fields):
    model: str = at("response.body.model", min_length=1)
    usage: _Usage = at("response.body.usage")


def to_run(batch: Batch, lines: Sequence[object]) -> Run:
    """Returns the run of a batch with these lines of output, which claims to be offline: all rows
    are there when the first one runs. Raises Rejection, and pydantic's ValidationError for a line
    without tokens."""
    answers = [_Answer.model_validate(line) for line in lines]
    if len(answers) != batch.answered:
        raise Rejection("rows of the output", len(answers), f"must be {batch.answered}")
    models = sorted({each.model for each in answers})
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
            requests=len(answers),
            window_s=window_s,
            input_tokens=sum(each.usage.prompt for each in answers),
            output_tokens=sum(each.usage.generated for each in answers),
        ),
        outcomes={"window_is": "the batch in whole seconds"},
        times=RunTimes(began_at_s=batch.began_at_s, ended_at_s=batch.ended_at_s),
    )
