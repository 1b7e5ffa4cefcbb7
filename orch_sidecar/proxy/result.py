"""What a stage of the request's path returns to the stage before it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.observability.record import OK, Outcome


class Retry(Enum):
    """Where a request may be tried again while its client has seen nothing yet."""

    NO = "no"
    OTHER_POOL = "other pool"
    ANY_POOL = "any pool"  # this one included: it did not reject the request itself
    REQUEUE = "requeue"  # the same pool: the upstream rejected the request for now


@dataclass(frozen=True, slots=True)
class Sent:
    """The client has its response, at least in part."""

    keep_alive: bool
    outcome: Outcome | Reason


SENT_WELL: Final = Sent(True, OK)  # as nearly all are


@dataclass(frozen=True, slots=True)
class NotSent:
    """The client has nothing yet. `reached_engine`: an engine received the request and was lost."""

    refusal: Refusal
    retry: Retry = Retry.NO
    reached_engine: bool = False


Result = Sent | NotSent
