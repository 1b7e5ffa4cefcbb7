"""Parses the state of an engine at one end of a measurement from `/v1/capabilities`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any, Final

from pydantic import AwareDatetime, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from orch_sidecar.tools.facts.labels.documents import at, first_problem
from orch_sidecar.tools.facts.tables import notes as names
from orch_sidecar.tools.facts.tables.row import Label

_Text = Annotated[str, Field(min_length=1)]
_Count = Annotated[int, Field(ge=0, strict=True)]
_Seconds = Annotated[float, Field(ge=0, lt=1e12)]  # 30 000 years
_BY_ITS_NAME: Final = ConfigDict(populate_by_name=True, allow_inf_nan=False)


Settings = dict[str, str | int]
# As where they are not reported.
_NOT_NOTED: Final = {names.LOADED: names.UNKNOWN, names.DATA_PARALLEL: "1"}


def settings_in(stated: Any) -> Settings:
    """Returns how an engine says that it is configured: the notes `tables.notes.SETTINGS`, as far
    as a row has them. Raises ValueError for a setting that is not of its form, or that every engine
    reports: those of older releases do not report all."""
    if not isinstance(stated, Mapping):
        raise ValueError("must be an object")
    found: Settings = {}
    for each in names.SETTINGS:
        value = stated.get(each.name)
        if value is None and each.name in names.ALWAYS_REPORTED:
            raise ValueError(f"its {each.name} is missing")
        if value is None or str(value) == _NOT_NOTED.get(each.name):
            continue
        if each.form is not None and (rule := each.form.violated_rule(str(value))) is not None:
            raise ValueError(f"its {each.name} {value!r:.60} {rule}")
        found[each.name] = value
    return found


@dataclass(frozen=True, slots=True, kw_only=True, config=_BY_ITS_NAME)
class Snapshot:
    """The state of an engine at one moment.

    Since the engine started: `steps_by_batch`, decode steps and their seconds, by batch size;
    `busy_s`, seconds in steps of any kind; `requests_total`, generation requests that it has
    accepted; `prefix_queries`, `prefix_hits`, prompt tokens looked up in the prefix cache, and
    found there; `generated_tokens`, of all sequences, and `prefilled_tokens`, of prompts as far as
    they were not cached, and `prefill_s`, what they added to steps, None where not reported.
    `kv_tokens_total`: the tokens that its KV cache holds, None where not reported.

    `weights`: the model as the engine loaded it, its id or path. `foreign`: sequences in the engine
    that did not come through the reporting sidecar; `leased`: those that did, 0 where the document
    does not state it. `state`: `ready`, or why the engine serves nothing. `observed_at`: when the
    engine reported; `age_ms`: how long before the document was made that was. `generation`: of the
    sidecar's configuration; 0 where the engine itself reported the document.
    """

    engine: _Text
    engine_version: _Text
    pool: _Text
    profile: _Text
    measurement_type: Label
    models: Annotated[tuple[str, ...], Field(min_length=1)]
    gpu: _Text
    gpu_count: _Count
    precision: _Text
    weights: _Text
    conditions: Annotated[Settings, BeforeValidator(settings_in)]
    epoch: _Text
    slots_total: _Count
    foreign: _Count
    requests_total: _Count
    preemptions_total: _Count
    # An engine that does not know the size of its cache reports 0.
    kv_tokens_total: Annotated[_Count | None, BeforeValidator(lambda count: count or None)] = None
    steps_by_batch: Mapping[int, tuple[int, float]]
    busy_s: _Seconds = at("busy_seconds_total", strict=True)
    prefix_queries: _Count = at("prefix_cache.queries_total")
    prefix_hits: _Count = at("prefix_cache.hits_total")
    observed_at: AwareDatetime = field(compare=False)  # two reports of the same state are equal
    age_ms: _Count = field(compare=False)
    state: _Text = "ready"
    generation: _Count = 0
    leased: _Count = 0
    generated_tokens: _Count | None = at("generated_tokens_total", default=None)
    prefilled_tokens: _Count | None = at("prefill.tokens", default=None)
    prefill_s: _Seconds | None = at("prefill.seconds", default=None)

    @property
    def in_engine(self) -> int:
        """All sequences in the engine."""
        return self.foreign + self.leased


_SNAPSHOT: Final = TypeAdapter(Snapshot)


def parse_snapshot(document: Any, pool: str | None = None) -> Snapshot:
    """Parses the state of the engine of a pool, by default the only one. Raises ValueError."""
    entries = document.get("engines") if isinstance(document, Mapping) else None
    if not isinstance(entries, list) or not all(isinstance(each, Mapping) for each in entries):
        raise ValueError("the document has no list `engines`: it must come from /v1/capabilities")
    pools = ", ".join(str(entry.get("pool")) for entry in entries) or "none"
    if pool is not None:
        entries = [entry for entry in entries if entry.get("pool") == pool]
    if len(entries) != 1:
        which = "a pool must be given" if pool is None else f"there must be one pool {pool!r}"
        raise ValueError(f"{which}: the document has {pools}")
    [entry] = entries
    if "engine" in entry and entry["engine"] is None:
        raise ValueError(
            f"the engine of the pool {entry.get('pool')!r} has not reported yet: "
            f"it is {entry.get('state')}"
        )
    try:
        return _SNAPSHOT.validate_python({**entry, "generation": document.get("generation", 0)})
    except ValidationError as error:
        problem = first_problem(error)
    if problem.startswith("prefix_cache"):
        problem += "; where clients have API keys, the key needs metrics: true"
    raise ValueError(problem)
