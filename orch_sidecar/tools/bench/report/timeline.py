"""What a run did over time: tokens, answers in generation, and requests in the queue.

By the client's times. The tokens of an answer count as evenly spread between its first and its
last one, as the result has no time of each token; without a first one, from its admission on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from orch_sidecar.tools.facts.labels.figures import CompletedRequest
from orch_sidecar.tools.facts.labels.recorded import Call

Span = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Bins:
    """Equal parts of the time from `begin_s` to `end_s`."""

    begin_s: float
    end_s: float
    count: int

    @property
    def width_s(self) -> float:
        return (self.end_s - self.begin_s) / self.count

    @property
    def edges(self) -> list[float]:
        """The bounds of the bins, one more than there are bins."""
        return [self.begin_s + self.width_s * number for number in range(self.count + 1)]

    def spread(self, amounts: Iterable[tuple[Span, float]]) -> list[float]:
        """Distributes amounts, each evenly over its span, and returns the sum in each bin."""
        sums, width = [0.0] * self.count, self.width_s
        for (from_s, until_s), amount in amounts:
            first, last = self._bin(from_s), self._bin(until_s)
            if first == last:
                sums[first] += amount
                continue
            per_s = amount / (until_s - from_s)
            for number in range(first, last + 1):
                left = self.begin_s + width * number
                inside = min(until_s, left + width) - max(from_s, left)
                sums[number] += per_s * max(0.0, inside)
        return sums

    def mean(self, spans: Iterable[Span]) -> list[float]:
        """Returns the mean number of spans that are open in each bin."""
        lengths = (((from_s, until_s), until_s - from_s) for from_s, until_s in spans)
        return [seconds / self.width_s for seconds in self.spread(lengths)]

    def _bin(self, at_s: float) -> int:
        number = int((at_s - self.begin_s) / self.width_s)
        return min(max(number, 0), self.count - 1)


def bins_of(completed: Sequence[CompletedRequest], count: int) -> Bins | None:
    """Divides the time from the first arrival to the last end; None without any."""
    if not completed:
        return None
    begin_s = min(each.arrived_s for each in completed)
    end_s = max(each.ended_s for each in completed)
    return Bins(begin_s, end_s, count) if end_s > begin_s else None


def tokens(requests: Sequence[Call]) -> Iterator[tuple[Span, float]]:
    """Yields the tokens of each answer, and the time in which they came."""
    for each in requests:
        made = each.served
        if made is None:
            continue
        from_s = made.first_token_s if each.first_s is not None else _admitted_s(each)
        yield (made.ended_s if from_s is None else from_s, made.ended_s), float(made.output_tokens)


def generating(requests: Sequence[Call]) -> Iterator[Span]:
    """Yields when each request generated: from its first token to its last."""
    for each in requests:
        if each.first_s is not None and each.ended_s is not None:
            yield each.first_s, each.ended_s


def waiting(requests: Sequence[Call]) -> Iterator[Span]:
    """Yields when each request waited for a slot, by the sidecar's report."""
    for each in requests:
        admitted_s = _admitted_s(each)
        if each.sent_s is not None and each.queue_ms is not None and admitted_s is not None:
            yield each.sent_s, admitted_s


def _admitted_s(call: Call) -> float | None:
    """Returns when it left the queue of the sidecar; when it was sent, where it reports no wait."""
    return None if call.sent_s is None else call.sent_s + (call.queue_ms or 0.0) / 1000
