"""Orders the queued requests of one class: fairly between API keys, for one key by arrival.

Pure. Start-time fair queueing for many slots. The unit is a token (one of a prompt counts once, a
generated one twice), divided by the key's weight. Each key has a virtual time: the tokens that it
was served, and those expected of its running requests. The key with the lowest one is next.

- A request counts its expected tokens when it is dispatched, and those that it used when it ends.
- Only used tokens move the settled part of its key's virtual time, so that a wrong expectation
  delays nobody for longer than the request runs, and nothing unused is kept as credit.
- A key that had nothing queued comes back at its own virtual time or the system's, whichever is
  later. The system's is the settled time of the key that was dispatched last, and never later than
  that of the key that is next.
- Requests without a key share one.

Between two keys with queued requests the difference of service, by weight, is at most that of the
slots, each with the largest expected request.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from collections.abc import Iterator
from typing import Final

from orch_sidecar.admission.key_share import Backlog, KeyShare, WorkAhead, forget_idle
from orch_sidecar.admission.types import AdmissionRequest, Lease, QueuedRequest

# Up to this number, queued requests are listed one by one to predict the place of another.
MAX_LISTED_REQUESTS: Final = 32
# Known keys beyond which idle ones are forgotten.
_MAX_KEYS: Final = 4096
# Changes per key with queued requests after which the backlog is summed up again.
_CHANGES_PER_KEY: Final = 1 / 4
# The mean tokens of a key's requests follow each request by an eighth.
_LEARNING_SHIFT: Final = 3


class FairQueue:
    """The queued requests of one class, and the shares of all keys."""

    def __init__(self) -> None:
        self.size = 0  # requests
        self.cost = 0  # sequences
        self.tokens = 0  # expected
        self.prompt_work = 0  # prompt tokens, each as often as its request has sequences
        self.shares: dict[bytes, KeyShare] = {}
        self._backlogged: dict[bytes, KeyShare] = {}
        self._returned: OrderedDict[str, QueuedRequest] = OrderedDict()
        self._heap: list[tuple[float, int, KeyShare]] = []  # virtual time, entry of the share
        self._entry = 0
        self._virtual_time = 0.0
        # The negative of a share's places at some time, a serial number, the share.
        self._by_places: list[tuple[float, int, KeyShare]] = []
        self._forget_at_keys = _MAX_KEYS
        self._backlog: Backlog | None = None
        self._changes = 0

    # Order

    def head(self) -> QueuedRequest | None:
        """Returns the request to dispatch next."""
        if not self.size:
            return None
        if self._returned:
            return next(iter(self._returned.values()))
        top = self._next_share()
        return None if top is None else next(iter(top.queue.values()))

    def __iter__(self) -> Iterator[QueuedRequest]:
        """Yields all requests in the order of their dispatch, if the expected tokens are right."""
        return self._before_tag(float("inf"))

    def before(self, request: AdmissionRequest) -> Iterator[QueuedRequest]:
        """Yields the requests that go before one that arrives now, in their order."""
        return self._before_tag(self._tag_of(request))

    def ahead(self, request: AdmissionRequest) -> WorkAhead:
        """Returns how much goes before a request that arrives now: an estimate in a long queue."""
        if not self.size:
            return WorkAhead(0, 0, 0)
        share = self.shares.get(request.key)
        alone = len(self._backlogged) == 1 and share is not None and share.queue
        if alone or not self._backlogged:  # all that wait have its key, or were dispatched before
            return WorkAhead(self.size, self.cost, self.tokens)
        if self.size <= MAX_LISTED_REQUESTS:
            queued = list(self.before(request))
            cost = sum(each.request.cost for each in queued)
            return WorkAhead(len(queued), cost, sum(each.expected_tokens for each in queued))
        if self._backlog is None or self._changes > _CHANGES_PER_KEY * len(self._backlogged):
            self._backlog, self._changes = Backlog(self._backlogged.values()), 0
        found = self._backlog.before(self._tag_of(request), share)
        requests = min(self.size, len(self._returned) + found.requests)
        return WorkAhead(requests, round(requests * self.cost / self.size), found.tokens)

    def oldest(self) -> QueuedRequest | None:
        """Returns the first request of the key that has the most queued for its weight."""
        longest = self._share_with_most_places()
        return self.head() if longest is None else longest.with_place(last=False)

    def displaced_by(self, request: AdmissionRequest) -> QueuedRequest | None:
        """Returns the request that gives its place in a full queue to this one: the last one of the
        key that has the most for its weight. None: that is this request's key."""
        own = self.shares.get(request.key)
        places = 1 if own is None else len(own.queue) - own.later_parts + 1
        longest = self._share_with_most_places()
        if longest is None or longest.places <= places / request.weight:
            return None
        return longest.with_place(last=True)

    # Changes

    def add(self, queued: QueuedRequest, *, at_head: bool = False) -> None:
        """Adds a request. `at_head`: it was dispatched before, and goes before all that were not,
        in the order of arrival."""
        self._count(queued, 1)
        if at_head:
            self._put_back(queued)
            return
        request = queued.request
        share = self.shares.get(request.key) or self._add_share(request.key)
        first, changed = not share.queue, share.weight != request.weight
        if changed:
            share.reweigh(request.weight, self._now())
        if first:
            share.level = max(share.level, self._now())
            self._backlogged[request.key] = share
        share.add(queued)
        if first or changed:
            self._push(share)
        self._note_places(share)

    def remove(self, queued: QueuedRequest) -> None:
        """Removes a request of this queue."""
        self._count(queued, -1)
        if self._returned.pop(queued.ticket, None) is None:
            share = self.shares[queued.request.key]
            share.remove(queued)
            if not share.queue:
                share.entry = 0
                del self._backlogged[share.key]

    def granted_at_once(self, lease: Lease, request: AdmissionRequest) -> None:
        """Counts a request that was never queued, with the mean tokens of its key's requests."""
        share = self.shares.get(request.key) or self._add_share(request.key)
        now = self._now() if self._heap else self._virtual_time
        if not share.queue:
            if share.weight != request.weight:
                share.reweigh(request.weight, now)
            if share.level < now:
                share.level = now
        if share.level > self._virtual_time:
            self._virtual_time = share.level
        lease.expected_tokens = share.mean_tokens
        share.running_tokens += share.mean_tokens
        share.running += 1
        if share.queue:
            self._push(share)

    def granted(self, lease: Lease, queued: QueuedRequest) -> None:
        """Counts a request of this queue that was removed to be dispatched."""
        key = queued.request.key
        share = self.shares.get(key) or self._add_share(key)
        if share.level > self._virtual_time:
            self._virtual_time = share.level
        lease.expected_tokens = queued.expected_tokens
        share.running_tokens += queued.expected_tokens
        share.running += 1
        if share.queue:
            self._push(share)

    def settle(self, lease: Lease, request: AdmissionRequest, tokens_used: int) -> None:
        """Settles a request that ended, after it used `tokens_used`."""
        share, expected = self.shares[request.key], lease.expected_tokens
        share.running_tokens -= expected
        share.running -= 1
        share.level += tokens_used / share.weight
        share.served += tokens_used
        if tokens_used:
            share.mean_tokens += (tokens_used - share.mean_tokens) >> _LEARNING_SHIFT
        if share.queue and expected != tokens_used:
            self._push(share)

    def forget_running(self) -> None:
        """Forgets running requests: the engine restarted."""
        for share in self.shares.values():
            share.running = share.running_tokens = 0
        for share in self._backlogged.values():
            self._push(share)

    # Parts

    def _before_tag(self, tag: float) -> Iterator[QueuedRequest]:
        yield from self._returned.values()
        again = Counter[bytes]()  # expected of them
        for each in self._returned.values():
            again[each.request.key] += each.expected_tokens
        turn = self._entry
        keys = [
            (
                share.tag + again[share.key] / share.weight,
                turn + share.entry if share.key in again else share.entry,
                iter(tuple(share.queue.values())),
                share.weight,
            )
            for share in self._backlogged.values()
        ]
        heapq.heapify(keys)
        turn *= 2
        while keys and keys[0][0] <= tag:
            at, _, queued, weight = keys[0]
            found = next(queued, None)
            if found is None:
                heapq.heappop(keys)
                continue
            yield found
            turn += 1  # of two equal keys, the one whose last turn is longer ago is next
            heapq.heapreplace(keys, (at + found.expected_tokens / weight, turn, queued, weight))

    def _tag_of(self, request: AdmissionRequest) -> float:
        """Returns the virtual time of a request that arrives now."""
        share = self.shares.get(request.key)
        if share is None:
            return self._now()
        level = share.level if share.queue else max(share.level, self._now())
        return level + (share.running_tokens + share.queued_tokens) / request.weight

    def _now(self) -> float:
        """Returns the system's virtual time."""
        top = self._next_share()
        return self._virtual_time if top is None else min(self._virtual_time, top.tag)

    def _next_share(self) -> KeyShare | None:
        heap = self._heap
        while heap and heap[0][1] != heap[0][2].entry:
            heapq.heappop(heap)
        return heap[0][2] if heap else None

    def _push(self, share: KeyShare) -> None:
        """Puts a share with queued requests into its place in the heap."""
        self._entry += 1
        share.entry = self._entry
        self._changes += 1
        heapq.heappush(self._heap, (share.tag, share.entry, share))
        if len(self._heap) > 2 * len(self._backlogged) + 64:
            self._heap = [entry for entry in self._heap if entry[1] == entry[2].entry]
            heapq.heapify(self._heap)

    def _put_back(self, queued: QueuedRequest) -> None:
        later = [each for each in self._returned.values() if each.arrived >= queued.arrived]
        self._returned[queued.ticket] = queued
        for each in later:
            self._returned.move_to_end(each.ticket)

    def _count(self, queued: QueuedRequest, sign: int) -> None:
        request = queued.request
        self._changes += 1
        self.size += sign
        self.cost += sign * request.cost
        self.tokens += sign * queued.expected_tokens
        self.prompt_work += sign * request.cost * request.prompt_tokens

    def _note_places(self, share: KeyShare) -> None:
        if len(self._by_places) > 2 * len(self._backlogged) + 64:
            self._by_places = [
                (-each.places, number, each)
                for number, each in enumerate(self._backlogged.values())
            ]
            heapq.heapify(self._by_places)
        self._entry += 1
        heapq.heappush(self._by_places, (-share.places, self._entry, share))

    def _share_with_most_places(self) -> KeyShare | None:
        """Returns the share with most places: what is noted of a share is never too low."""
        longest = self._by_places
        while longest:
            noted, number, share = longest[0]
            if noted == -share.places and share.queue:
                return share
            if share.queue:
                heapq.heapreplace(longest, (-share.places, number, share))
            else:
                heapq.heappop(longest)
        return None

    def _add_share(self, key: bytes) -> KeyShare:
        if len(self.shares) >= self._forget_at_keys:
            forget_idle(self.shares)
            self._forget_at_keys = len(self.shares) + _MAX_KEYS // 2
        share = self.shares[key] = KeyShare(key)
        return share
