"""The conditions under which an engine ran, as it reports them: the notes of `tables.notes`.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

# The value of a condition that the engine does not report.
UNKNOWN: Final = "unknown"


@dataclass(frozen=True, slots=True)
class EngineConditions:
    """How an engine is configured. The fields are the notes `tables.notes.CONDITIONS`, and
    `data_parallel`: of how many ranks the engine is one; 1: it is the whole model. `loaded`: the
    note of that name."""

    speculative: str
    quantization: str
    kv_cache_dtype: str
    prefix_caching: str
    attention_backend: str
    tensor_parallel: int
    pipeline_parallel: int
    data_parallel: int = 1  # engines of older releases had no ranks, and do not report it
    loaded: str = UNKNOWN  # nor that

    @property
    def notes(self) -> dict[str, str | int | float]:
        """The conditions as notes of a row, in their order; of one rank only if it is one."""
        notes = asdict(self)
        if self.data_parallel == 1:
            del notes["data_parallel"]
        if self.loaded == UNKNOWN:
            del notes["loaded"]
        return notes


def parse_conditions(values: Mapping[str, Any]) -> EngineConditions:
    """Parses the conditions of a state document or a span, by the names of the notes.

    Raises ValueError where one is missing or of another type; the message names it.
    """
    values = {"data_parallel": 1, "loaded": UNKNOWN, **values}
    texts = ("speculative", "quantization", "kv_cache_dtype", "prefix_caching", "attention_backend")
    for name in (*texts, "loaded"):
        if not isinstance(values.get(name), str) or not values[name]:
            raise ValueError(f"{name} is {values.get(name)!r}: it must be a text that is not empty")
    for name in ("tensor_parallel", "pipeline_parallel", "data_parallel"):
        if type(values.get(name)) is not int or values[name] < 1:
            raise ValueError(f"{name} is {values.get(name)!r}: it must be an integer of at least 1")
    return EngineConditions(**{each.name: values[each.name] for each in fields(EngineConditions)})
