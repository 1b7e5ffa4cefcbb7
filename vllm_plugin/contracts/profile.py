"""Reads profiles: how an engine batches (single-stream, batched-online or offline), in YAML.

Decides whether a profile is consistent in itself. Knows no vLLM: `engine` maps names of vLLM
engine arguments to rules, which `enforce` applies.

Requirements: BATCHING/ORCH-3900 to 3902, 3912, 3920, 3921.
"""

from __future__ import annotations

import os.path
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from vllm_plugin.contracts.senders import Unleased

SLOTS_ARGUMENT: Final = "max_num_seqs"
MAX_WAIT_S: Final = 86_400.0  # of a queued request


class ProfileError(ValueError):
    """A profile cannot be used; the message names file, key and rule."""


class MeasurementType(StrEnum):
    """How the engine was batching when a figure was measured."""

    SINGLE_STREAM = "single_stream"
    BATCHED_ONLINE = "batched_online"
    OFFLINE = "offline"


class ServiceClass(StrEnum):
    """The class of a request, which determines its SLO, its queue and its priority.

    `rank`: 0 is the most urgent. As an index, for to hash a member takes long (Python 3.11).
    """

    INTERACTIVE = "interactive", 0
    BULK = "bulk", 1
    IDLE = "idle", 2  # has what the others leave, and gives it back when they want it

    rank: int

    def __new__(cls, value: str, rank: int) -> Self:
        found = str.__new__(cls, value)
        found._value_, found.rank = value, rank
        return found


# Members once: to look one up in its enum takes long, too.
INTERACTIVE: Final = ServiceClass.INTERACTIVE
BULK: Final = ServiceClass.BULK
IDLE: Final = ServiceClass.IDLE


class FullQueue(StrEnum):
    """What a full queue does with a new request."""

    REJECT = "reject"
    DROP_LRU = "drop-lru"  # evicts the bulk request that has been queued longest


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ArgumentRule(_Strict):
    """The rule for an engine argument: `fixed`, or a `default` with an optional `minimum`."""

    fixed: int | bool | str | None = None
    default: int | bool | str | None = None
    minimum: int | None = None

    @model_validator(mode="after")
    def _one_of_fixed_and_default(self) -> ArgumentRule:
        if (self.fixed is None) == (self.default is None):
            raise ValueError("exactly one of `fixed` and `default` must be given")
        if self.fixed is not None and self.minimum is not None:
            raise ValueError("`minimum` is allowed with `default` only, not with `fixed`")
        if self.minimum is not None and (
            not isinstance(self.default, int)
            or isinstance(self.default, bool)
            or self.default < self.minimum
        ):
            raise ValueError("`default` must be an integer that is not below `minimum`")
        return self

    @property
    def value(self) -> int | bool | str:
        """The value of the argument if the operator gives none."""
        chosen = self.fixed if self.fixed is not None else self.default
        assert chosen is not None
        return chosen

    def objection(self, given: Any) -> str | None:
        """Returns why `given` contradicts this rule, or None if it does not."""
        if self.fixed is not None and given != self.fixed:
            return f"must be {self.fixed!r}"
        if type(given) is not type(self.value):
            return f"must be of type {type(self.value).__name__}"
        if self.minimum is not None and int(given) < self.minimum:
            return f"must be at least {self.minimum}"
        return None


class BatchBounds(_Strict):
    """Sequences at once: `least` whatever is measured, and no more than `most`; without `most` the
    measured time per token alone bounds them."""

    least: int = Field(ge=1, le=1_000_000)
    most: int | None = Field(default=None, ge=1, le=1_000_000)

    @model_validator(mode="after")
    def _ordered(self) -> BatchBounds:
        if self.most is not None and self.least > self.most:
            raise ValueError(f"`least` ({self.least}) must not be above `most` ({self.most})")
        return self


class ClassRules(_Strict):
    """SLOs and limits of one class."""

    ttft_p95_ms: float | None = Field(
        gt=0,
        le=86_400_000,
        description="SLO of the time to the first token, milliseconds, or `null`. A request that "
        "would miss it is rejected at once; with `null` none is",
    )
    tpot_p95_ms: float | None = Field(
        gt=0,
        le=3_600_000,
        description="SLO of the time per output token, milliseconds, or `null`: bounds the batch",
    )
    queue_capacity: int = Field(
        ge=0,
        le=1_000_000,
        description="waiting requests of the class, from 0; a setting of the sidecar can override "
        "this and `max_wait_s`",
    )
    max_wait_s: float = Field(
        gt=0, le=MAX_WAIT_S, description="longest wait for a slot, seconds above 0"
    )
    batch: BatchBounds = Field(
        description="`{least, most}`, sequences: interactive ones at once, or for `bulk` those of "
        "both classes. Bounds that hold whatever is measured; without `most` the SLO per token "
        "decides"
    )


class AdmissionRules(_Strict):
    """The sidecar's admission policy."""

    full_queue: FullQueue = Field(
        strict=False,
        description="of a full queue: `reject` the new request, or `drop-lru`, evict the bulk "
        "request that has waited longest",
    )
    bulk_share: float = Field(
        default=0.1,
        ge=0,
        lt=1,
        description="share of the slots' time, 0 to below 1, that bulk requests get while they "
        "wait, however many interactive ones there are",
    )
    aging_s: float | None = Field(
        default=None,
        gt=0,
        le=86_400,
        description="interactive traffic delays a bulk request by no more than that, seconds "
        "above 0; then bulk requests are next, so keep it in minutes. With `null` only "
        "`bulk_share` bounds the delay",
    )
    reclaim: bool = Field(
        default=False,
        description="a bulk request of which its client has seen nothing may have to give its "
        "slots to an interactive one that would miss its SLO, and is queued again; not if `bulk` "
        "has a `ttft_p95_ms`",
    )
    coalescing: bool = Field(description="identical deterministic requests share one generation")
    split: bool = Field(
        default=False,
        description="a request for more sequences than can start at once runs in parts; with "
        "`false` it waits for all of its slots, and one for more than there are is a 400",
    )
    interactive: ClassRules | None = Field(
        description="the rules of the class, below; `null` for `offline`, and only there: every "
        "request is then bulk"
    )
    bulk: ClassRules = Field(description="the rules of the class, below")

    def of(self, service_class: ServiceClass) -> ClassRules:
        """Returns the rules of a class; those of bulk if there is no interactive class."""
        if service_class is IDLE:
            return self.idle
        if service_class is BULK or self.interactive is None:
            return self.bulk
        return self.interactive

    @cached_property
    def idle(self) -> ClassRules:
        """The rules of idle requests: no SLO, and a wait of up to a day. A queue as bulk's."""
        return ClassRules(
            ttft_p95_ms=None,
            tpot_p95_ms=None,
            queue_capacity=self.bulk.queue_capacity,
            max_wait_s=MAX_WAIT_S,
            batch=self.bulk.batch,
        )


class Profile(_Strict):
    """A profile that is consistent in itself."""

    name: str = Field(
        pattern=r"^[a-z][a-z0-9-]{0,62}$",
        description="a lower-case letter, then lower-case letters, digits and `-`, 63 characters "
        "at most; appears in spans, metrics and `/v1/capabilities`",
    )
    measurement_type: MeasurementType = Field(
        strict=False,
        description="`single_stream`, `batched_online` or `offline`: the label of every span and "
        "figure",
    )
    batching: bool = Field(description="`false` for `single_stream`, else `true`")
    unleased: Unleased = Field(
        default=Unleased.COUNT,
        strict=False,
        description="generating requests that reach the engine without a sidecar: with `count` "
        "they run and are counted as foreign, with `refuse` the answer is a 403 that names the "
        "remedy",
    )
    engine: dict[str, ArgumentRule] = Field(
        description="arguments of vLLM, each with a rule. `{fixed: V}`: no other value. "
        "`{default: V, minimum: N}`: V unless another one is given, and at least N (integers; "
        "`minimum` is optional). `max_num_seqs` is required: `{fixed: 1}` for `single_stream`, "
        "else at least 2"
    )
    admission: AdmissionRules = Field(
        description="what the sidecar does with the slots: its keys are below"
    )

    @property
    def slots(self) -> ArgumentRule:
        """The rule for `max_num_seqs`."""
        return self.engine[SLOTS_ARGUMENT]

    @model_validator(mode="after")
    def _consistent(self) -> Profile:
        rule = self.engine.get(SLOTS_ARGUMENT)
        if rule is None or type(rule.value) is not int:
            raise ValueError(f"`engine.{SLOTS_ARGUMENT}` must be given, as an integer rule")
        single = self.measurement_type is MeasurementType.SINGLE_STREAM
        offline = self.measurement_type is MeasurementType.OFFLINE
        least_slots = rule.value if rule.fixed is not None else rule.minimum or 1
        admission = self.admission
        for broken, requirement in (
            (self.batching is single, f"batching: {'false' if single else 'true'}"),
            (single and rule.fixed != 1, f"engine.{SLOTS_ARGUMENT}: {{fixed: 1}}"),
            (
                not single and least_slots < 2,
                f"engine.{SLOTS_ARGUMENT} with more than one slot: a `fixed` value or a `minimum` "
                "of at least 2",
            ),
            (
                offline and admission.interactive is not None,
                "admission.interactive: null (every request is bulk)",
            ),
            (not offline and admission.interactive is None, "admission.interactive"),
        ):
            if broken:
                raise ValueError(f"measurement_type {self.measurement_type} requires {requirement}")
        return self


class _UniqueKeys(yaml.SafeLoader):
    """YAML's safe subset, in which a duplicate key is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise ProfileError(
                    f"line {key_node.start_mark.line + 1}: key {key!r} must be a string"
                )
            if key in seen:
                raise ProfileError(
                    f"line {key_node.start_mark.line + 1}: key {key!r} is given twice"
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def directory() -> Path:
    """Returns the directory of the shipped profiles, in the installed package or source tree."""
    package = Path(__file__).parents[1]
    inside = package / "profiles"
    return inside if inside.is_dir() else package.parent / "profiles"


def shipped() -> list[str]:
    """Returns the names of the shipped profiles."""
    return sorted(path.stem for path in directory().glob("*.yaml"))


def load(name_or_path: str) -> Profile:
    """Reads a profile by name (`home`) or by path (anything with a `/` or ending in `.yaml`).

    Raises ProfileError if there is no such profile, or if it cannot be read or used.
    """
    is_path = "/" in name_or_path or name_or_path.endswith((".yaml", ".yml"))
    # After the `=` of a flag no shell expands `~`. pathlib would raise where there is no home.
    given = os.path.expanduser(name_or_path)  # noqa: PTH111
    path = Path(given) if is_path else directory() / f"{name_or_path}.yaml"
    if not is_path and name_or_path not in shipped():
        raise ProfileError(
            f"profile {name_or_path!r}: no such profile; use one of {', '.join(shipped())}, or "
            "the path of a YAML file"
        )
    if path.exists() and not path.is_file():
        raise ProfileError(f"{path}: cannot be read: it must be a regular file")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileError(f"{path}: cannot be read: {error}") from error
    try:
        # _UniqueKeys is a SafeLoader: it constructs plain values only.
        document = yaml.load(text, Loader=_UniqueKeys)  # noqa: S506
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ProfileError is a ValueError
        raise ProfileError(f"{path}: not a profile: {error}") from error
    if not isinstance(document, dict):
        raise ProfileError(f"{path}: not a profile: it must be a mapping")
    try:
        return Profile.model_validate(document)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(str(part) for part in problem['loc']) or '(profile)'}: {problem['msg']}"
            + (f" (given: {problem['input']!r})" if problem["loc"] else "")
            for problem in error.errors()
        )
        raise ProfileError(f"{path}: {problems}") from error
