"""Checks an answer against those that its request may get.

These follow from the request, from the fault that it ordered, and from the faults during its
lifetime; anything else is a violation.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

from tests.benchmarks.soak.answers import CHAT, COMPLETIONS, EMBEDDINGS, MESSAGES, RESPONSES
from tests.benchmarks.soak.events import InvalidJson, Spoken, read_document, read_stream
from tests.benchmarks.soak.orders import BEFORE_FIRST_BYTE, HARMLESS, Fault
from tests.benchmarks.soak.report import Report
from tests.benchmarks.soak.requests import Request
from tests.benchmarks.soak.responses import Response
from tests.benchmarks.soak.trouble import Trouble

# The least time limit of a queue that a reload may set.
QUEUE_TIMEOUT_S: Final = 3.0
# An event loop has one time for all that it does in a turn: it may be that old.
_CLOCK_S: Final = 0.25

_ID: Final = {
    CHAT: "chatcmpl-", COMPLETIONS: "cmpl-", RESPONSES: "resp_", MESSAGES: "msg_",
    EMBEDDINGS: "embd-",
}  # fmt: skip
_ORDERED: Final = {Fault.HTTP_400: 400, Fault.HTTP_500: 500, Fault.HTTP_503: 503}
_NO_ANSWER: Final = {
    Fault.RESET_FIRST: 502, Fault.CLOSE_FIRST: 502, Fault.BAD_HEAD: 502, Fault.HANG_FIRST: 504,
}  # fmt: skip
# What came just before these may not have been passed on.
_MAY_OVERTAKE: Final = frozenset({Fault.RESET, Fault.BAD_CHUNK, Fault.EXTRA})
_RETRIABLE: Final = frozenset({429, 502, 503, 504})


@dataclass(slots=True)
class Under:
    """The circumstances of a request: when it was sent and answered, and whether it was cancelled
    (`cancelled`: by a cancel that was answered with 204)."""

    begin: float
    end: float
    cancelled: bool = False


class Judge:
    """Judges the answers of one scene, and counts what the metrics must account for."""

    def __init__(self, report: Report, trouble: Trouble, all_pools: tuple[str, ...]) -> None:
        self._report = report
        self._trouble = trouble
        self._all_pools = all_pools
        self.output_tokens = 0  # of whole answers with a usage, that nobody shares
        self.failures: Counter[int] = Counter()  # that clients got, by status (200: in a stream)

    def judge(self, request: Request, response: Response, under: Under) -> None:
        """Reports a breach unless the answer may be."""
        if response.status == 0:
            outcome = self._unanswered(request, response, under)
        elif not response.whole:
            outcome = self._cut(request, response, under)
        else:
            self._check_head(request, response)
            if response.status == 200:
                outcome = self._judge_success(request, response, under)
            else:
                self.failures[response.status] += 1
                outcome = self._judge_error(request, response, under)
        self._report.outcomes[outcome] += 1

    def _breach(self, kind: str, request: Request, response: Response, more: str = "") -> None:
        detail = f"{request}: {response.status} {more or bytes(response.body[-300:])!r}"
        self._report.breach(kind, detail)

    def _unanswered(self, request: Request, response: Response, under: Under) -> str:
        """Every request is answered. A reset takes with it what its client has not read yet."""
        if response.reset:
            return self._cut(request, response, under)
        self._breach("a request without an answer", request, response, response.error)
        return "no answer"

    def _cut(self, request: Request, response: Response, under: Under) -> str:
        """The connection ended within the answer."""
        broken = request.order.fault not in HARMLESS and request.order.fault not in _NO_ANSWER
        excused = broken or under.cancelled or self._down(request, under)
        if not excused:
            self._breach("an answer that was cut short", request, response, response.error)
        return "cut short"

    def _check_head(self, request: Request, response: Response) -> None:
        headers = response.headers
        if headers.get("x-request-id") != request.id:
            self._breach(
                "an answer with another X-Request-Id", request, response,
                f"X-Request-Id {headers.get('x-request-id')!r}",
            )  # fmt: skip
        if "x-measurement-type" not in headers:
            self._breach("an answer without X-Measurement-Type", request, response)
        if response.status in _RETRIABLE and request.order.fault not in _ORDERED:
            missing = [name for name in ("retry-after", "retry-after-ms") if not headers.get(name)]
            if missing:
                self._breach("a retriable refusal without Retry-After", request, response)

    # Answers with status 200.

    def _judge_success(self, request: Request, response: Response, under: Under) -> str:
        if not request.key.known and not request.key.unsettled(under.begin):
            self._breach("an unknown API key was served", request, response, request.key.name)
        if not request.pools:
            self._breach("a request that no pool can serve was served", request, response)
        read = read_stream if request.stream else read_document
        try:
            spoken = read(request.path, bytes(response.body))
        except InvalidJson as error:
            if request.order.fault is Fault.EXTRA:
                return "whole, then failed"  # what the engine sent behind its answer came later
            self._breach(
                "an answer that is neither whole nor failed", request, response, str(error)
            )
            return "unreadable"
        if spoken.ids - {_ID[request.path] + request.id}:
            self._breach("an answer with another id", request, response, f"ids {spoken.ids}")
        if spoken.error is not None:
            self.failures[200] += 1
            return self._judge_failed_stream(request, response, spoken, under)
        may_be_whole = request.order.fault in HARMLESS or request.order.fault is Fault.EXTRA
        if not may_be_whole and not self._down(request, under):
            self._breach("a whole answer to a request that the engine failed", request, response)
        self._check_whole(request, response, spoken)
        return "whole stream" if request.stream else "whole document"

    def _check_whole(self, request: Request, response: Response, spoken: Spoken) -> None:
        order = request.order
        expected = {choice: order.text(choice) for choice in range(request.choices)}
        if dict(spoken.texts) != expected or spoken.ended != set(expected):
            more = f"expected {expected}, got {dict(spoken.texts)}, ended {spoken.ended}"
            self._breach("a whole answer with another text", request, response, more[:600])
        must = not request.stream or request.usage or request.path in (RESPONSES, MESSAGES)
        generated = order.tokens * request.choices
        if must and spoken.output_tokens != generated:
            more = f"usage says {spoken.output_tokens}, generated {generated}"
            self._breach("a whole answer with another usage", request, response, more)
        if must and not request.shared:
            self.output_tokens += generated

    def _judge_failed_stream(
        self, request: Request, response: Response, spoken: Spoken, under: Under
    ) -> str:
        for choice, text in spoken.texts.items():
            if not request.order.text(choice).startswith(text):
                self._breach("a failed stream with another text", request, response)
        fault = request.order.fault
        broken = fault not in HARMLESS and fault not in _NO_ANSWER and fault not in _ORDERED
        pools = request.pools or self._all_pools
        away = request.choices > 1 and self._trouble.away(pools, under.begin, under.end)  # parts
        if not (broken or under.cancelled or away or self._down(request, under)):
            self._breach("a stream that failed without a reason", request, response)
        return "failed stream"

    # Answers with another status.

    def _judge_error(self, request: Request, response: Response, under: Under) -> str:
        status = response.status
        try:
            document = json.loads(response.body)
            error: dict[str, Any] = document["error"]
            message, code = error["message"], error.get("code")
        except (ValueError, LookupError, TypeError):
            self._breach("an error that is not in the form of the API", request, response)
            return f"{status}"
        if request.path == MESSAGES and document.get("type") != "error":
            self._breach("an error that is not in the form of the API", request, response)
        if message == f"scripted {request.order.key}":  # the engine's own, passed on
            if status != _ORDERED.get(request.order.fault):
                self._breach("another error of the engine", request, response)
            return f"{status} of the engine"
        if not self._may_be(request, status, str(code), under):
            kind = f"a {status} ({code}) without a reason"
            self._breach(kind, request, response)
        return f"{status} {code}"

    def _may_be(self, request: Request, status: int, code: str, under: Under) -> bool:
        key = request.key
        if status == 401:
            return not key.known or key.unsettled(under.begin)
        if status == 403:
            return key.bulk and request.sent_class == "interactive"
        if status == 400:
            if code == "cost_exceeds_key":
                return key.concurrency is not None and request.choices > key.concurrency
            whole = request.do_not_queue and request.choices > 1  # not in parts
            return code in ("cost_exceeds_slots", "infeasible") and (whole or not request.pools)
        if status == 429:
            return self._may_be_taken(request, code, under)
        if status == 499:
            return under.cancelled and code == "cancelled"
        if status == 503:
            pools = request.pools or self._all_pools
            lost = request.order.fault in BEFORE_FIRST_BYTE or request.order.fault is Fault.RESET
            # One engine has failed it, and another is away; or the one that it asked for; or that
            # with the label of its first part.
            needed = 1 if lost or not request.pools or request.choices > 1 else len(pools)
            return self._trouble.away(pools, under.begin, under.end) >= needed
        if status in (502, 504):
            fault = request.order.fault
            ordered = _NO_ANSWER.get(fault) == status
            # Nothing of an answer was passed on yet: where it is no stream, or is shared.
            late = fault not in HARMLESS and fault not in _ORDERED and fault not in _NO_ANSWER
            late = late and (not request.stream or request.shared or fault in _MAY_OVERTAKE)
            return ordered or late or self._down(request, under)
        return False

    def _may_be_taken(self, request: Request, code: str, under: Under) -> bool:
        waited_s = under.end - under.begin + _CLOCK_S
        reasons = {
            "ADMISSION_REJECT": True,
            "QUEUE_FULL_DROP_LRU": True,  # of bulk requests, and of a pool that is all bulk
            "ADMISSION_TIMEOUT": request.max_wait or waited_s >= QUEUE_TIMEOUT_S,
            "ADMISSION_DEADLINE": request.deadline,
            "ADMISSION_SLO": not request.bulk,
            "ADMISSION_NO_QUEUE": request.do_not_queue,
            "ADMISSION_KEY_CONCURRENCY": request.key.concurrency is not None,
        }
        return reasons.get(code, False)

    def _down(self, request: Request, under: Under) -> bool:
        return self._trouble.down(request.pools or self._all_pools, under.begin, under.end)
