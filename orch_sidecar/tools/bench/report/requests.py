"""The requests of a result, as its file has them, and by their classes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pydantic import ValidationError

from orch_sidecar.tools.bench.results.result import Result
from orch_sidecar.tools.facts.labels.figures import CompletedRequest
from orch_sidecar.tools.facts.labels.recorded import Call, RecordedRun


def requests_of(result: Result) -> list[Call]:
    """Returns the requests in the order in which they were sent. Raises ValueError."""
    fields = {"id", "measurement_type", "scenario", "engine", "client", "counts", "calls"}
    try:
        return RecordedRun.model_validate(result.model_dump(include=fields)).calls
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"]))
        columns = ", ".join(result.call_columns)
        raise ValueError(f"{place}: {first['msg']}: a call must have {columns}") from error


def served(requests: Sequence[Call]) -> Iterator[CompletedRequest]:
    """Yields the figures of those that were answered, and whose length is known."""
    return (made for each in requests if (made := each.served) is not None)


def by_class(requests: Sequence[Call]) -> dict[str, list[Call]]:
    """Returns the requests of each class where they have more than one, else all under ""."""
    found: dict[str, list[Call]] = {}
    for each in requests:
        found.setdefault(each.service_class or "", []).append(each)
    return dict(sorted(found.items(), reverse=True)) if len(found) > 1 else {"": [*requests]}
