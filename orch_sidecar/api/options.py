"""Parses the options of a request from its headers.

Pure. Each option is one header. An invalid value is rejected with header, value and rule: were it
ignored, a deadline would be missed without notice. Headers of other gateways are supported, so
that their clients need not change; `OPTIONS` says what each means. X-Orch-Class and
X-Orch-Deadline-Ms take precedence. Other classes and objectives are ignored: they belong to other
systems.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Final, TypeVar

from multidict import MultiMapping, istr

from orch_sidecar.api.headers import (
    FAIRNESS_IDS,
    TPOT_SLOS,
    TTFT_SLOS,
    X_GATEWAY_OBJECTIVE,
    X_LLM_D_OBJECTIVE,
    X_ORCH_CLASS,
    X_ORCH_DEADLINE_MS,
    X_ORCH_DO_NOT_QUEUE,
    X_ORCH_MAX_WAIT_MS,
    X_ORCH_MEASUREMENT_TYPE,
    X_ORCH_NO_COALESCE,
    X_ORCH_POOL,
    X_ORCH_QUEUE_EVENTS,
    X_ORCH_RUN,
    X_ORCH_SCENARIO,
    X_SMG_PRIORITY,
)
from orch_sidecar.api.refusal import Reason, Refusal
from vllm_plugin.contracts.profile import INTERACTIVE, MeasurementType, ServiceClass

_T = TypeVar("_T")

# By header, which value it takes and what that does.
OPTIONS: Final[Mapping[istr, str]] = {
    X_ORCH_CLASS: "`interactive`, `bulk` or `idle`: the class; idle requests have what the others "
    "leave",
    X_ORCH_DEADLINE_MS: "`1500`: the first token is only useful within that time. Rejected at once "
    "if it is expected later",
    X_ORCH_MAX_WAIT_MS: "`500`: rejected at once if its predicted wait is longer, or when it has "
    "waited that long",
    X_ORCH_DO_NOT_QUEUE: "`true`: rejected unless a slot is free",
    X_ORCH_POOL: "`home` or `home; prefer`: this pool only; or this pool if it can serve the "
    "request",
    X_ORCH_MEASUREMENT_TYPE: "`single_stream`: only a pool with this measurement type",
    X_ORCH_NO_COALESCE: "`true`: its generation is not shared",
    X_ORCH_QUEUE_EVENTS: "`sse`: a stream that is queued begins at once, with its place in the "
    "queue",
    X_ORCH_RUN: "an id that nobody can guess, as `orch bench` makes one for each run: the span "
    "gets `orch.run`, a digest of it, which tells the run's own requests from those that join its "
    "scenario. Neither engine nor child sidecar gets it",
    X_ORCH_SCENARIO: "the name of a run: the spans get `orch.scenario`. Neither engine nor child "
    "sidecar gets it",
    X_SMG_PRIORITY: "a class of the Shepherd Model Gateway: `system` and `interactive` are "
    "interactive, `bulk` is bulk; `default` has no effect",
    X_LLM_D_OBJECTIVE: "an InferenceObjective, named by its operator: `interactive` and `critical` "
    "are interactive; `bulk`, `batch`, `best-effort` and `sheddable` are bulk",
    X_GATEWAY_OBJECTIVE: f"as `{X_LLM_D_OBJECTIVE}`",
    FAIRNESS_IDS[0]: "the flow of the request: flows share the slots of a class as API keys of "
    "equal weight do. It counts only from a gateway: a client that invents flows would get more",
    FAIRNESS_IDS[1]: f"as `{FAIRNESS_IDS[0]}`",
    TTFT_SLOS[0]: f"as `{X_ORCH_DEADLINE_MS}`; 0 is none",
    TTFT_SLOS[1]: f"as `{X_ORCH_DEADLINE_MS}`; 0 is none",
    TPOT_SLOS[0]: "`50`: tokens are only useful if they come at least that often, in "
    "milliseconds; 0 is none. Rejected at once if, by the engine's fit, they would come more "
    "slowly in the batch as it is then. Later requests may still enlarge it, within the profile's "
    "SLO",
    TPOT_SLOS[1]: f"as `{TPOT_SLOS[0]}`",
}
_NAMES: Final = tuple(OPTIONS)

_CLASSES: Final = {member.value: member for member in ServiceClass}
_TYPES: Final = {member.value: member for member in MeasurementType}
_OBJECTIVES: Final = {
    "interactive": ServiceClass.INTERACTIVE,
    "critical": ServiceClass.INTERACTIVE,
    "bulk": ServiceClass.BULK,
    "batch": ServiceClass.BULK,
    "best-effort": ServiceClass.BULK,
    "sheddable": ServiceClass.BULK,
}
_EVENT_FORMS: Final = {"sse": True}
_ALIASES: Final = (
    (
        X_SMG_PRIORITY,
        {
            "system": ServiceClass.INTERACTIVE,
            "interactive": ServiceClass.INTERACTIVE,
            "bulk": ServiceClass.BULK,
        },
    ),
    (X_LLM_D_OBJECTIVE, _OBJECTIVES),
    (X_GATEWAY_OBJECTIVE, _OBJECTIVES),
)
_BOOLEANS: Final = {"": True, "true": True, "1": True, "false": False, "0": False}
_NUMBER: Final = re.compile(r"[0-9]{1,12}(\.[0-9]{1,6})?")
# Of a scenario, and of a run.
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_POOL: Final = re.compile(r"([a-z][a-z0-9-]{0,62})\s*(;\s*prefer\s*)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """How a request is to be served.

    `pool`: the pool that must serve it; with `prefers`, that should. `scenario`: the test run that
    it belongs to, an attribute of its trace; `run`: the digest of that run's secret id.
    `tpot_ms`: the longest time per token that is useful. `flow`: the digest of its fairness id,
    empty without one.
    `queue_events`: a stream begins with comments about its place in the queue. `labelled`: its
    response has begun with `measurement_type`, which its client did not ask for. `empty`: nothing
    is asked for.
    """

    service_class: ServiceClass | None = None
    deadline_ms: float | None = None
    max_wait_ms: float | None = None
    do_not_queue: bool = False
    pool: str | None = None
    prefers: bool = False
    measurement_type: MeasurementType | None = None
    no_coalesce: bool = False
    scenario: str | None = None
    run: str | None = None
    tpot_ms: float | None = None
    flow: bytes = b""
    queue_events: bool = False
    labelled: bool = False
    empty: bool = field(init=False, compare=False)

    def __post_init__(self) -> None:
        values = (getattr(self, each.name) == each.default for each in fields(self) if each.init)
        object.__setattr__(self, "empty", all(values))  # once, in a frozen object

    @property
    def limits_wait(self) -> bool:
        """Whether the client limits the wait or the time per token; another, whose generation it
        would share, does not know that."""
        return (
            self.deadline_ms is not None
            or self.max_wait_ms is not None
            or self.tpot_ms is not None
            or self.do_not_queue
        )


NO_OPTIONS: Final = RequestOptions()


def read_options(headers: MultiMapping[str]) -> RequestOptions | Refusal:
    """Parses the options of a request."""
    for name in _NAMES:
        if name in headers:
            break
    else:
        return NO_OPTIONS
    try:
        return _read(headers)
    except InvalidOption as invalid:
        return invalid.refusal


def run_digest(secret: str) -> str:
    """Returns what traces and results have instead of the id of a run: reading it lets none join.

    The first 32 hexadecimal digits of its SHA-256.
    """
    return hashlib.sha256(secret.encode()).hexdigest()[:32]


def service_class_of(
    options: RequestOptions, service_tier: str | None, priority: int | None
) -> ServiceClass:
    """Returns the class of a request: from its header, else from tier or priority of its body."""
    if options.service_class is not None:
        return options.service_class
    if service_tier is not None:
        return ServiceClass.BULK if service_tier == "flex" else ServiceClass.INTERACTIVE
    # As in vLLM: a lower value is served earlier, 0 is the default.
    if priority is not None and priority > 0:
        return ServiceClass.BULK
    return INTERACTIVE


class InvalidOption(Exception):
    """An option that is rejected; has the refusal."""

    def __init__(self, name: str, value: str, rule: str) -> None:
        shown = value if len(value) <= 40 else f"{value[:40]}..."
        message = f"{name} is {shown!r}, but {rule}"
        super().__init__(message)
        self.refusal = Refusal(Reason.INVALID_REQUEST, message, str(name))


def _read(headers: MultiMapping[str]) -> RequestOptions:
    chosen = _member(headers, X_ORCH_CLASS, _CLASSES)
    if chosen is None:
        chosen = _alias(headers)
    pool, prefers = _pool(headers)
    deadline_ms = _number(headers, X_ORCH_DEADLINE_MS)
    if deadline_ms == 0:
        text = "must be above 0 (milliseconds)"
        raise InvalidOption(X_ORCH_DEADLINE_MS, headers[X_ORCH_DEADLINE_MS], text)
    if deadline_ms is None:
        deadline_ms = _slo(headers, TTFT_SLOS)
    return RequestOptions(
        service_class=chosen,
        deadline_ms=deadline_ms,
        max_wait_ms=_number(headers, X_ORCH_MAX_WAIT_MS),
        do_not_queue=_flag(headers, X_ORCH_DO_NOT_QUEUE),
        pool=pool,
        prefers=prefers,
        measurement_type=_member(headers, X_ORCH_MEASUREMENT_TYPE, _TYPES),
        no_coalesce=_flag(headers, X_ORCH_NO_COALESCE),
        scenario=_name(headers, X_ORCH_SCENARIO),
        run=None if (run := _name(headers, X_ORCH_RUN)) is None else run_digest(run),
        tpot_ms=_slo(headers, TPOT_SLOS),
        flow=_flow(headers),
        queue_events=_member(headers, X_ORCH_QUEUE_EVENTS, _EVENT_FORMS) is not None,
    )


def _one(headers: MultiMapping[str], name: istr) -> str | None:
    """Returns the value of an option. Raises InvalidOption if the header is repeated."""
    values = headers.getall(name, [])
    if not values:
        return None
    if len(values) > 1:
        raise InvalidOption(name, ", ".join(values), "must be sent only once")
    return values[0].strip()


def _member(headers: MultiMapping[str], name: istr, members: dict[str, _T]) -> _T | None:
    value = _one(headers, name)
    if value is None:
        return None
    member = members.get(value.lower())
    if member is None:
        raise InvalidOption(name, value, f"must be one of {', '.join(members)}")
    return member


def _alias(headers: MultiMapping[str]) -> ServiceClass | None:
    for name, meanings in _ALIASES:
        meaning = meanings.get(headers.get(name, "").strip().lower())
        if meaning is not None:
            return meaning
    return None


def _number(headers: MultiMapping[str], name: istr) -> float | None:
    value = _one(headers, name)
    if value is None:
        return None
    if not _NUMBER.fullmatch(value):
        raise InvalidOption(name, value, "must be a number of milliseconds in digits, 0 or more")
    return float(value)


def _slo(headers: MultiMapping[str], names: Sequence[istr]) -> float | None:
    """Returns an SLO of other gateways, in milliseconds: of the first of its names that is sent."""
    name = next((name for name in names if name in headers), None)
    return None if name is None else _number(headers, name) or None


def _flow(headers: MultiMapping[str]) -> bytes:
    value = next((found for name in FAIRNESS_IDS if (found := headers.get(name))), "")
    return hashlib.sha256(value.encode(errors="surrogateescape")).digest() if value else b""


def _flag(headers: MultiMapping[str], name: istr) -> bool:
    value = _one(headers, name)
    if value is None:
        return False
    flag = _BOOLEANS.get(value.lower())
    if flag is None:
        raise InvalidOption(name, value, "must be true or 1, false or 0, or empty (meaning true)")
    return flag


def _name(headers: MultiMapping[str], name: istr) -> str | None:
    value = _one(headers, name)
    if value is not None and not _NAME.fullmatch(value):
        raise InvalidOption(name, value, "must be 1 to 64 letters, digits, '.', '_' or '-'")
    return value


def _pool(headers: MultiMapping[str]) -> tuple[str | None, bool]:
    value = _one(headers, X_ORCH_POOL)
    if value is None:
        return None, False
    match = _POOL.fullmatch(value)
    if match is None:
        raise InvalidOption(X_ORCH_POOL, value, "must be the name of a pool, or `name; prefer`")
    return match[1].lower(), match[2] is not None
