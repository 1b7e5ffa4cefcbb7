"""Shows costs: as a page for people, and as a document for programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from orch_sidecar.tools.drawing.page import Page
from orch_sidecar.tools.drawing.texts import NONE, number_text
from orch_sidecar.tools.facts.comparison.compare import ExcludedRow
from orch_sidecar.tools.facts.cost.cost import Cost, Prices, Total, by_label
from orch_sidecar.tools.facts.tables.row import Label

_OF_LABELS: Final[Mapping[Label, str]] = {
    Label.SINGLE_STREAM: "one user's own machine, or a reserved one",
    Label.BATCHED_ONLINE: "a shared machine, by its tokens within the SLO",
    Label.OFFLINE: "a backlog for which nobody waits",
}
_COLUMNS: Final[tuple[tuple[str, Callable[[Cost], str]], ...]] = (
    ("row", lambda cost: cost.place),
    ("model", lambda cost: cost.row.model_name),
    ("gpu", lambda cost: f"{cost.row.gpu_count} x " * (cost.row.gpu_count > 1) + cost.row.gpu),
    ("batch", lambda cost: str(cost.row.batch)),
    ("in", lambda cost: str(cost.row.input_tokens)),
    ("out", lambda cost: str(cost.row.output_tokens)),
    ("hour", lambda cost: number_text(cost.hour)),
    ("tokens/s", lambda cost: number_text(cost.tokens_per_s)),
    ("in SLO", lambda cost: NONE if cost.within_slo is None
     else f"{cost.within_slo:.1%} ({cost.slo})"),
    ("engine busy", lambda cost: NONE if cost.engine_busy is None else f"{cost.engine_busy:.0%}"),
    ("1M out, inputs included", lambda cost: number_text(cost.output_with_input)),
    ("1M in", lambda cost: number_text(cost.input)),
    ("1M out", lambda cost: number_text(cost.output)),
    ("divided by", lambda cost: cost.split_by or NONE),
    ("remarks", lambda cost: ", ".join(cost.remarks)),
)  # fmt: skip
_TEXTS: Final = 3
_RULE: Final = (
    "1M in and 1M out divide the hour by the engine's time for each; where that is unknown there "
    "is only a price with the inputs included. Different labels are prices of different things."
)


def as_page(
    costs: Sequence[Cost], without: Sequence[ExcludedRow], prices: Prices, total: Total | None
) -> Page:
    """Returns a table for each label, then the rows without a price."""
    page = Page("What a million tokens cost")
    page.text(_reserved(prices))
    for label, found in by_label(costs):
        page.section(f"{label}: {_OF_LABELS[label]}")
        rows = [[cell(each) for _, cell in _COLUMNS] for each in found]
        page.table([head for head, _ in _COLUMNS], rows, _TEXTS)
    if costs:
        page.text(_RULE)
    if total is not None:
        page.section(f"{total.label}, as one figure of {total.rows}")
        price, hour = number_text(total.output_with_input), number_text(total.hour)
        page.text(f"1M out, inputs included: {price}; an hour of all: {hour}")
    if without:
        page.section("without a price:")
        page.list(f"{each.place}: {each.why}" for each in without)
    return page


def as_document(
    costs: Sequence[Cost], without: Sequence[ExcludedRow], prices: Prices, total: Total | None
) -> dict[str, Any]:
    """Converts costs to JSON values, with the field names of `cost`; rows by their label."""
    return {
        "prices": asdict(prices),
        "costs": {str(label): [asdict(each) for each in found] for label, found in by_label(costs)},
        "total": None if total is None else asdict(total),
        "unpriced": [asdict(each) for each in without],
    }


def _reserved(prices: Prices) -> str:
    """Says what is paid for, and how much of it works."""
    parts = [f"reserved: whole hours at {prices.per_hour:g} for each accelerator (or machine)"]
    if prices.per_kwh:
        idle = f", {prices.idle_watts:g} W idle" if prices.used < 1 else ""
        parts.append(f"electricity at {prices.per_kwh:g}/kWh and {prices.watts:g} W{idle}")
    else:
        parts.append("electricity included or not counted")
    parts.append(f"used: {prices.used:.0%} of the hours as in the row")
    return "; ".join(parts)
