"""The requests of a result, as its file has them."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from orch_sidecar.tools.bench.load.call import Fate
from orch_sidecar.tools.bench.load.scenario import Slo
from orch_sidecar.tools.bench.results.result import Document, Result
from orch_sidecar.tools.facts.labels.figures import CompletedRequest
from vllm_plugin.contracts.profile import ServiceClass


class TimedRequest(Document):
    """A row of `calls`. Times are seconds since the start of the run."""

    due_s: float | None
    sent_s: float | None
    first_s: float | None
    ended_s: float | None
    status: int | None
    fate: Fate
    why: str
    input_tokens: int | None
    output_tokens: int | None
    queue_ms: float | None
    service_class: ServiceClass | None = Field(alias="class")

    @property
    def arrived_s(self) -> float | None:
        """When it was due, or else sent; None of one that never was."""
        return self.sent_s if self.due_s is None else self.due_s

    @property
    def admitted_s(self) -> float | None:
        """When it left the queue of the sidecar; when it was sent, where no wait is reported."""
        return None if self.sent_s is None else self.sent_s + (self.queue_ms or 0.0) / 1000

    @property
    def completed(self) -> CompletedRequest | None:
        """Its figures; None unless it was answered and its length is known."""
        arrived_s = self.arrived_s
        if self.fate is not Fate.ANSWERED or arrived_s is None:
            return None
        if self.ended_s is None or self.output_tokens is None:
            return None
        return CompletedRequest(
            arrived_s, self.first_s, self.ended_s, self.input_tokens or 0, self.output_tokens
        )


def requests_of(result: Result) -> list[TimedRequest]:
    """Returns the requests in the order in which they were sent. Raises ValueError."""
    columns = result.call_columns
    rows = []
    for number, row in enumerate(result.calls):
        if len(row) != len(columns):
            raise ValueError(
                f"calls[{number}] has {len(row)} values: it must have one for each of the "
                f"{len(columns)} call_columns"
            )
        rows.append(TimedRequest.model_validate(dict(zip(columns, row, strict=True))))
    return rows


def by_class(requests: Sequence[TimedRequest]) -> dict[str, list[TimedRequest]]:
    """Returns the requests of each class where they have more than one, else all under ""."""
    found: dict[str, list[TimedRequest]] = {}
    for each in requests:
        found.setdefault("" if each.service_class is None else each.service_class.value, []).append(
            each
        )
    return dict(sorted(found.items(), reverse=True)) if len(found) > 1 else {"": [*requests]}


def slo_of(result: Result) -> Slo:
    """Returns the bounds that requests had to meet."""
    return Slo(**{f"{name}_ms": bound for name, bound in result.scenario.slo_ms.items()})
