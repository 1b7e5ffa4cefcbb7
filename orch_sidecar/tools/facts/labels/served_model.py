"""Which id a model may have in a row, by what its engine reports.

Pure. An engine knows the names that it serves a model by, and the model as it loaded it
(`weights`). Another id would be a claim. A path means nothing on another machine: where the engine
knows its model by paths only, the user has to name it, and the row notes that the id was given.
"""

from __future__ import annotations

from orch_sidecar.tools.facts.labels.snapshot import Snapshot
from orch_sidecar.tools.facts.tables.row import is_path


def model_objection(model_id: str, engine: Snapshot) -> str | None:
    """Returns why a model cannot have that id in a row; None if it can."""
    if is_path(model_id):
        return "is a path: name the model with --model-id"
    known = _known_ids(engine)
    if not known or model_id in known:
        return None
    return f"the engine serves {', '.join(engine.models)} (loaded as {engine.weights}), not this"


def is_given(model_id: str, engine: Snapshot) -> bool:
    """Returns whether an id is the user's, as the engine knows the model by paths only."""
    return model_id not in _known_ids(engine)


def _known_ids(engine: Snapshot) -> list[str]:
    """Returns the ids that mean something on other machines."""
    return [each for each in (*engine.models, engine.weights) if not is_path(each)]
