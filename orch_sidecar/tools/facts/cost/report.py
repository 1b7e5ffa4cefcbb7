"""Shows costs: as a page for people, and as a document for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from orch_sidecar.tools.drawing.page import Page
from orch_sidecar.tools.drawing.texts import NONE, number_text
from orch_sidecar.tools.facts.cost.cost import Cost, Prices, Total, Unpriced, by_label
from orch_sidecar.tools.facts.tables.row import Label

_OF_LABELS: Final[Mapping[Label, str]] = {
    Label.SINGLE_STREAM: "a machine of one user's own, or reserved for one",
    Label.BATCHED_ONLINE: "a shared machine, by its tokens within the SLO",
    Label.OFFLINE: "a backlog for which nobody waits",
}
_HEAD: Final = (
    "row", "model", "gpu", "batch", "in", "out", "hour", "tokens/s", "in SLO", "engine busy",
    "1M out, inputs included", "1M in", "1M out", "divided by", "remarks",
)  # fmt: skip
_TEXTS: Final = 3
_RULE: Final = (
    "1M in and 1M out divide the hour by the engine's time for each; where that is unknown there "
    "is only a price with the inputs included. Different labels are prices of different things."
)


def as_page(
    costs: Sequence[Cost], without: Sequence[Unpriced], prices: Prices, total: Total | None
) -> Page:
    """Returns a table for each label, then the rows without a price."""
    page = Page("What a million tokens cost")
    page.text(_reserved(prices))
    for label, found in by_label(costs):
        page.section(f"{label}: {_OF_LABELS[label]}")
        page.table(_HEAD, map(_cells, found), _TEXTS)
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
    costs: Sequence[Cost], without: Sequence[Unpriced], prices: Prices, total: Total | None
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


def _cells(cost: Cost) -> Sequence[str]:
    row = cost.row
    return (
        cost.place,
        row.model_name,
        f"{row.gpu_count} x {row.gpu}" if row.gpu_count > 1 else row.gpu,
        str(row.batch),
        str(row.input_tokens),
        str(row.output_tokens),
        number_text(cost.hour),
        number_text(cost.tokens_per_s),
        NONE if cost.within_slo is None else f"{cost.within_slo:.1%} ({cost.slo})",
        NONE if cost.engine_busy is None else f"{cost.engine_busy:.0%}",
        number_text(cost.output_with_input),
        number_text(cost.input),
        number_text(cost.output),
        cost.split_by or NONE,
        ", ".join(cost.remarks),
    )
