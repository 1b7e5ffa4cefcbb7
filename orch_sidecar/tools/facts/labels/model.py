"""The id and the name that a model may have in a row, by what its engine reports.

Pure. An engine knows the names that it serves a model by, and the model as it loaded it. Another id
would be a claim. A path means nothing on another machine: where the engine knows its model by paths
only, the user has to name it, and the row notes that the id was given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orch_sidecar.tools.facts.tables.row import is_path, last_part


@dataclass(frozen=True, slots=True)
class Model:
    """A model in a row. `given`: the columns of it that are the user's. `objection`: why it cannot
    have that id; None if it can."""

    id: str
    name: str
    given: Sequence[str]
    objection: str | None


def name_model(
    model_id: str, name: str | None, served_as: Sequence[str], loaded: Sequence[str]
) -> Model:
    """Returns a model that is served by some names. `name`: None for the last part of its id."""
    known = [each for each in (*served_as, *loaded) if not is_path(each)]
    objection = None
    if is_path(model_id):
        objection = "is a path: name the model with --model-id"
    elif known and model_id not in known:
        names = ", ".join(served_as)
        objection = f"the engine serves {names} (loaded as {', '.join(loaded)}), not this"
    shown = name or last_part(model_id)
    own = {"model_id": model_id not in known, "model_name": shown != last_part(model_id)}
    return Model(model_id, shown, [each for each, by_user in own.items() if by_user], objection)
