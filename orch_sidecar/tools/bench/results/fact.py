"""Converts a result to a row of a table of facts, and writes the evidence beside the table.

An invalid, incomplete or unbatched result makes no row, and an unverified one is labelled to be
confirmed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from orch_sidecar.tools.bench.results.result import Result, Status, missing_identity
from orch_sidecar.tools.facts.labels import measured
from orch_sidecar.tools.facts.labels.measured import Engine, KnownEngine, Model
from orch_sidecar.tools.facts.labels.recorded import RecordedRun
from orch_sidecar.tools.facts.signing.evidence_file import SUFFIX, digest, evidence_of
from orch_sidecar.tools.facts.tables import files
from orch_sidecar.tools.facts.tables.check import invalid_fields
from orch_sidecar.tools.facts.tables.notes import PREFIX_HIT_RATIO
from orch_sidecar.tools.facts.tables.row import Row

# The parts of a result that a row is not made of. What the engine signed is in the evidence itself,
# and its unsigned documents prove nothing.
_UNUSED: Final = {"evidence", "capabilities"}


def row_of(result: Result) -> Row:
    """Returns the row. Raises ValueError with the reasons why there is none."""
    engine, figures = result.engine, result.figures
    if not result.is_sound or result.status is Status.UNBATCHED or figures is None:
        raise ValueError(f"the result is {result.status}: {'; '.join(result.reasons)}")
    missing = missing_identity(engine)
    if any(call.served and call.input_tokens is None for call in result.calls):
        missing.append("the number of prompt tokens is unknown: the responses do not report it")
    if missing:
        raise ValueError("; ".join(missing))
    recorded = RecordedRun.model_validate(result.model_dump(mode="json", exclude=_UNUSED))
    ratio = {PREFIX_HIT_RATIO: result.prefix_hit_ratio}
    known = KnownEngine(
        Engine(str(engine.engine), str(engine.precision), str(engine.gpu), engine.gpu_count or 0),
        None if result.status is Status.UNVERIFIED else result.batches,
        {"profile": engine.profile, **(engine.conditions or {}), **ratio},
    )
    model = Model(engine.model_id, engine.model_name, engine.given)
    label, tag = result.measurement_type, f"orch-bench:{result.id}"
    return measured.row_of(recorded.run, label, known, model, tag)


def with_evidence(row: Row, result: Result, facts: Path) -> Row:
    """Writes the evidence of a result, and returns the row with the note that names it.

    A result without evidence leaves the row as it is, and so does a row that no table would take.
    Raises OSError.
    """
    if result.evidence.signed is None or invalid_fields(row):
        return row
    measured = result.model_dump(mode="json", exclude=_UNUSED)
    content, named = evidence_of(result.evidence.signed, row, measured)
    files.write(facts.resolve().parent / f"{digest(content)}{SUFFIX}", content)
    return named
