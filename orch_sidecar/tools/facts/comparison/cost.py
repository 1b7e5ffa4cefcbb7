"""Prices rows: what a million tokens cost, by label.

Pure. docs/how-to/cost.md has the formulas. What is not measured and not given is not guessed, and
labels never share a figure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from orch_sidecar.tools.drawing.page import Columns, Page
from orch_sidecar.tools.drawing.texts import NONE, number_text
from orch_sidecar.tools.facts.comparison.compare import ExcludedRow
from orch_sidecar.tools.facts.comparison.conditions import UNCONFIRMED, remarks_of
from orch_sidecar.tools.facts.labels.observation import States
from orch_sidecar.tools.facts.signing.verdict import ReadEvidence, Verdict, Verifier
from orch_sidecar.tools.facts.tables import notes as names
from orch_sidecar.tools.facts.tables.notes import RowNotes, time_note
from orch_sidecar.tools.facts.tables.row import Label, Row
from orch_sidecar.tools.facts.tables.table import LocatedRow


@dataclass(frozen=True, slots=True)
class Prices:
    """What is paid for one accelerator with its share of the host, in any currency.

    `used`: the share of the hours in which it works. `per_kwh`: of electricity, 0 where the hour
    includes it; `watts`, `idle_watts`: what it draws while it works and while it does not. Raises
    ValueError for hours of no use, and for electricity without the draws that it needs.
    """

    per_hour: float
    used: float = 1.0
    per_kwh: float = 0.0
    watts: float | None = None
    idle_watts: float | None = None

    def __post_init__(self) -> None:
        if not self.used:
            raise ValueError("--used must be above 0: unused hours have no tokens")
        if self.per_kwh and self.watts is None:
            raise ValueError("electricity needs --watts: power is measured or given, never guessed")
        if self.per_kwh and self.used < 1 and self.idle_watts is None:
            raise ValueError("electricity of hours that are not all used needs --idle-watts, too")

    @property
    def electricity(self) -> float:
        """Of an hour."""
        drawn = self.used * (self.watts or 0.0) + (1 - self.used) * (self.idle_watts or 0.0)
        return self.per_kwh * drawn / 1000

    def hour(self, accelerators: int) -> float:
        """Returns what a reserved hour of that many accelerators costs; 0: of one machine."""
        return max(1, accelerators) * (self.per_hour + self.electricity)


@dataclass(frozen=True, slots=True)
class Cost:
    """What the tokens of a row cost. Money is in the currency of the prices, shares from 0 to 1.

    `hour`: a reserved hour. `tokens_per_s`: generated tokens that are paid for, `within_slo` of
    all. `engine_busy`: of the run. `output_with_input`: a million output tokens, inputs included;
    `input`, `output`: a million of each, and `split_by` what divided the hour between them. None:
    not known.
    """

    place: str
    row: Row
    hour: float
    tokens_per_s: float
    within_slo: float | None
    slo: str
    engine_busy: float | None
    output_with_input: float
    input: float | None
    output: float | None
    split_by: str
    remarks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Costs:
    """The costs of rows by their label, which never share a figure, and the rows without one."""

    prices: Prices
    costs: Mapping[Label, Sequence[Cost]]
    unpriced: Sequence[ExcludedRow]


def priced(rows: Sequence[LocatedRow], prices: Prices, evidence: ReadEvidence) -> Costs:
    """Returns what the tokens of rows cost."""
    found: dict[Label, list[Cost]] = {label: [] for label in Label}
    without: list[ExcludedRow] = []
    for located in rows:
        if lacks := _lacks(located.row):
            without.append(ExcludedRow(located.place, lacks))
        else:
            found[located.row.measurement_type].append(_cost(located, prices, evidence))
    return Costs(prices, {label: costs for label, costs in found.items() if costs}, without)


def _lacks(row: Row) -> str:
    """Returns what a row lacks to be priced; empty for one that lacks nothing."""
    if row.measurement_type is not Label.BATCHED_ONLINE:
        return "" if row.is_confirmed else UNCONFIRMED
    notes, share = row.notes, row.notes.number(names.GOODPUT_SHARE)
    needed = {
        f"the SLO ({', '.join(names.SLOS)})": {*names.SLOS} & notes.keys(),
        f"the share of requests within it ({names.GOODPUT_SHARE})": share is not None,
    }
    if missing := [text for text, known in needed.items() if not known]:
        return f"incomplete: a shared machine's tokens need {' and '.join(missing)}"
    if names.LATENCY_OF in notes:
        return (
            f"incomplete: {names.GOODPUT_SHARE} is of interactive requests only, the throughput of "
            "bulk work, too"
        )
    return "" if share else "no request was within the SLO"


def _cost(located: LocatedRow, prices: Prices, evidence: ReadEvidence) -> Cost:
    row, notes = located.row, located.row.notes
    within = _within_slo(notes) if row.measurement_type is Label.BATCHED_ONLINE else None
    tokens_per_s = row.throughput_tokens_per_sec * (1.0 if within is None else within)
    hour = prices.hour(row.gpu_count)
    # By sound evidence of this row; who signed it is left to `orch facts verify`.
    found = Verifier(evidence, {}).row(row)
    proof = None if found.verdict is Verdict.FAILED else found.proof
    engine = None if proof is None else proof.states
    share, split_by = _input_share(row, engine)
    with_input = per_million(hour, tokens_per_s * prices.used)
    of_input = row.output_tokens / row.input_tokens if row.input_tokens else None
    hits = notes.number(names.PREFIX_HIT_RATIO)
    cached = (f"{hits:.0%} of the input from the prefix cache",) if hits else ()
    window_s = notes.number("window_s")
    bounds = [name for name in names.SLOS if name in notes]
    return Cost(
        place=located.place,
        row=row,
        hour=hour,
        tokens_per_s=tokens_per_s,
        within_slo=within,
        slo=", ".join(f"{name.split('_')[1].upper()} {notes[name]} ms" for name in bounds),
        engine_busy=min(1.0, engine.grew("busy_s") / window_s) if engine and window_s else None,
        output_with_input=with_input,
        input=None if share is None or of_input is None else with_input * share * of_input,
        output=None if share is None else with_input * (1 - share),
        split_by=split_by,
        remarks=(*remarks_of(notes, verified=False), *cached),
    )


def per_million(hour: float, tokens_per_s: float) -> float:
    """Returns what a million tokens cost if an hour that costs `hour` has so many per second."""
    return 1_000_000 * hour / (3600 * tokens_per_s)


def _within_slo(notes: RowNotes) -> float:
    """Returns the share of the answered requests that met the SLO, from that of all requests."""
    answered = notes.number("requests")
    if not answered:
        return float(notes[names.GOODPUT_SHARE])
    others = sum(notes.number(name) or 0 for name in ("refused", "failed", "cancelled"))
    return min(1.0, float(notes[names.GOODPUT_SHARE]) * (answered + others) / answered)


def _input_share(row: Row, engine: States | None) -> tuple[float | None, str]:
    """Returns the share of the hour that is of the input tokens, and from what it follows."""
    if engine is not None and engine.grew("prefill_s") is not None and engine.grew("busy_s") > 0:
        return min(1.0, engine.grew("prefill_s") / engine.grew("busy_s")), "the engine's time"
    first_ms, all_ms = (row.notes.number(time_note(name, 50)) for name in ("ttft", "latency"))
    if row.measurement_type is Label.SINGLE_STREAM and first_ms and all_ms:
        return min(1.0, first_ms / all_ms), "the time to the first token"
    return None, ""


_OF_LABELS: Final[Mapping[Label, str]] = {
    Label.SINGLE_STREAM: "one user's own machine, or a reserved one",
    Label.BATCHED_ONLINE: "a shared machine, by its tokens within the SLO",
    Label.OFFLINE: "a backlog for which nobody waits",
}
_COLUMNS: Final[Columns] = (
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


def as_page(found: Costs) -> Page:
    """Returns a table for each label, then the rows without a price."""
    page, electricity = Page("What a million tokens cost"), found.prices.electricity
    power = f"and {electricity:g} for electricity" if electricity else "electricity included"
    page.text(
        f"reserved: whole hours at {found.prices.per_hour:g} for each accelerator (or machine), "
        f"{power}; used: {found.prices.used:.0%} of the hours as in the row"
    )
    for label, costs in found.costs.items():
        page.section(f"{label}: {_OF_LABELS[label]}")
        page.columns(_COLUMNS, zip(costs), texts=3)
    if found.costs:
        page.text(
            "1M in and 1M out divide the hour by the engine's time for each; where that is unknown "
            "there is only a price with the inputs included. Different labels are prices of "
            "different things."
        )
    if found.unpriced:
        page.section("without a price:")
        page.list(f"{each.place}: {each.why}" for each in found.unpriced)
    return page
