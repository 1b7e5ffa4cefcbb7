"""The clients and their behaviours: complete, disconnect at any moment, cancel, pipeline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from random import Random
from typing import Final

from tests.benchmarks.soak import oddities
from tests.benchmarks.soak.ends import Ends
from tests.benchmarks.soak.orders import HARMLESS, Order
from tests.benchmarks.soak.report import Report
from tests.benchmarks.soak.requests import Request, Requests
from tests.benchmarks.soak.responses import Connection, Left, NotHttp, Response, ask
from tests.benchmarks.soak.verdict import Judge, Under
from tests.patience import HANG_S

_BACKS_OFF_MS: Final = 20.0  # at most: those who are refused must not be all that comes
_LONG: Final = 300  # tokens, at 20 ms: what is left of it is work for nobody
# With so much sent ahead of an answer a sidecar may close the connection behind it.
_GIVEN_UP_BYTES: Final = 32_768
_MANY: Final = 50  # requests ahead: aiohttp stops reading at 32
_HALF_BODY_BYTES: Final = 400_000
_LARGE: Final = 1500  # tokens at once: more than a socket's buffers take


class Client:
    """Asks again and again, mostly on the connection that it has."""

    def __init__(
        self,
        port: int,
        requests: Requests,
        judge: Judge,
        ends: Ends,
        report: Report,
        chance: Random,
    ) -> None:
        self._port = port
        self._requests = requests
        self._judge = judge
        self._ends = ends
        self._report = report
        self._chance = chance
        self._kept: Connection | None = None
        self._current: Request | str = ""
        self._behaviour = ""
        self._limit: asyncio.Timeout | None = None
        self._since = 0.0  # it asks, or has got the answer before
        self._behaviours: dict[str, tuple[float, Callable[[], Awaitable[None]]]] = {
            "stays": (42, self._stay),
            "leaves at once": (7, self._leave_at_once),
            "leaves soon": (13, self._leave_soon),
            "leaves at the head": (5, self._leave_at_head),
            "leaves within the answer": (7, self._leave_within),
            "pipelines": (4, self._pipeline),
            "pipelines and leaves": (0.5, self._pipeline_and_leave),
            "leaves a long answer": (0.5, self._leave_long),
            "leaves within its body": (4, self._leave_within_body),
            "sends slowly": (2, self._send_slowly),
            "reads slowly": (0.3, self._read_slowly),
            "cancels": (6, self._cancel),
            "asks something odd": (5, self._ask_oddly),
        }

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set; then it leaves."""
        names = list(self._behaviours)
        weights = [weight for weight, _ in self._behaviours.values()]
        try:
            while not stop.is_set():
                [name] = self._chance.choices(names, weights)
                self._report.behaviours[name] += 1
                self._behaviour = name
                await self._live(name, self._behaviours[name][1])
        finally:
            self._drop()

    async def _live(self, name: str, behave: Callable[[], Awaitable[None]]) -> None:
        try:
            async with asyncio.timeout(HANG_S) as self._limit:
                self._since = time.monotonic()
                await behave()
        except TimeoutError:
            detail = f"{self._current} of a client that {name}"
            self._report.breach(f"no answer within {HANG_S:g} s", detail)
            self._drop()
        except NotHttp as error:
            self._report.breach("an answer that is not HTTP", f"{self._current}: {error}")
            self._drop()
        except OSError as error:
            self._report.breach("the sidecar cannot be reached", f"{name}: {error!r}")
            self._drop()
            await asyncio.sleep(0.1)

    # Connections.

    async def _connection(self) -> Connection:
        if self._kept is None or not self._kept.open:
            self._kept = await Connection.to(self._port)
        return self._kept

    def _drop(self, *, reset: bool = False) -> None:
        if self._kept is not None:
            self._kept.close(reset=reset)
            self._kept = None

    def _leave(self) -> None:
        self._report.outcomes["left"] += 1
        self._drop(reset=self._chance.random() < 0.5)

    def _next(self, order: Order | None = None, *headers: str, last: bool = True) -> Request:
        self._report.lifecycles += 1
        request = self._requests.next(order, headers, last=last)
        self._current, request.behaviour = request, self._behaviour
        return request

    async def _pause(self, most_ms: float) -> None:
        """Mostly short, at times as long as that."""
        await asyncio.sleep(most_ms / 1000 * self._chance.random() ** 3)

    async def _read(self, connection: Connection, request: Request, under: Under) -> None:
        await self._judged(request, await connection.response(), under)

    async def _judged(self, request: Request, response: Response, under: Under) -> None:
        under.end = time.monotonic()
        self._judge.judge(request, response, under)
        self._report.answered(under.end - self._since, request)
        self._since = under.end
        # Those that were sent together are served one after the other.
        assert self._limit is not None
        self._limit.reschedule(asyncio.get_running_loop().time() + HANG_S)
        if response.status >= 400:
            await self._pause(_BACKS_OFF_MS)

    # Behaviours.

    async def _stay(self) -> None:
        connection, request = await self._connection(), self._next()
        under = _under()
        connection.send(request.head + request.body)
        await self._read(connection, request, under)

    async def _leave_at_once(self) -> None:
        connection, request = await self._connection(), self._next()
        connection.send(request.head + request.body)
        self._leave()

    async def _leave_soon(self) -> None:
        connection, request = await self._connection(), self._next()
        connection.send(request.head + request.body)
        await self._pause(100.0)
        self._leave()

    async def _leave_at_head(self) -> None:
        await self._leave_after(0)

    async def _leave_within(self) -> None:
        await self._leave_after(self._chance.randrange(1, 1500))

    async def _leave_after(self, count: int) -> None:
        """Leaves after that many bytes of the answer, if it has as many."""
        connection, request = await self._connection(), self._next()
        under = _under()
        connection.send(request.head + request.body)
        try:
            response = await connection.response(count)
        except Left:
            self._leave()
            return
        await self._judged(request, response, under)

    async def _pipeline(self) -> None:
        connection = await self._connection()
        requests = [self._next(last=False) for _ in range(self._chance.randrange(2, 5))]
        under = _under()
        connection.send(b"".join(each.head + each.body for each in requests))
        sent = left = sum(len(each.head) + len(each.body) for each in requests)
        for request in requests:
            self._current = request
            if not connection.open:
                return  # the answer before this one was the last of its connection
            response = await connection.response()
            given_up = response.status == 0 and left < sent and left > _GIVEN_UP_BYTES
            left -= len(request.head) + len(request.body)
            behind = requests[requests.index(request) + 1 :]
            # A reset that breaks off an answer takes those with it that were not read yet.
            lost = response.reset and any(each.order.fault not in HARMLESS for each in behind)
            if given_up or lost:
                self._report.outcomes["lost in a pipeline"] += 1
                return
            await self._judged(request, response, under)

    async def _leave_long(self) -> None:
        connection, request = await self._connection(), self._next(self._long())
        connection.send(request.head + request.body)
        await self._pause(300.0)
        self._ends.left(request.order.key)
        self._leave()

    async def _pipeline_and_leave(self) -> None:
        connection, request = await self._connection(), self._next(self._long(), last=False)
        connection.send(request.head + request.body + self._behind())
        await self._pause(300.0)
        self._ends.left(request.order.key)
        self._leave()

    def _behind(self) -> bytes:
        """Requests sent ahead: one, more than a server keeps, or one with half of a large body."""
        draw = self._chance.randrange(3)
        behinds = [self._requests.next(last=False) for _ in range(_MANY if draw == 1 else 1)]
        if draw < 2:
            return b"".join(each.head + each.body for each in behinds)
        [behind] = behinds
        length = b"Content-Length: %d\r\n" % len(behind.body)
        larger = b"Content-Length: %d\r\n" % (2 * _HALF_BODY_BYTES)
        return behind.head.replace(length, larger) + b"{" * _HALF_BODY_BYTES

    def _long(self) -> Order:
        key = f"long-{self._chance.getrandbits(48):012x}"
        return Order(key, _LONG, pace_ms=20.0, watched=True)

    async def _leave_within_body(self) -> None:
        connection, request = await self._connection(), self._next()
        connection.send(request.head + request.body[: self._chance.randrange(len(request.body))])
        await self._pause(60.0)
        self._leave()

    async def _send_slowly(self) -> None:
        connection, request = await self._connection(), self._next()
        under = _under()
        data = request.head + request.body
        cuts = sorted(self._chance.sample(range(1, len(data)), 3))
        for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
            connection.send(data[begin:end])
            await self._pause(60.0)
        await self._read(connection, request, under)

    async def _read_slowly(self) -> None:
        order = Order(f"large-{self._chance.getrandbits(48):012x}", _LARGE)
        connection, request = await self._connection(), self._next(order)
        under = _under()
        connection.send(request.head + request.body)
        await asyncio.sleep(0.3)
        await self._read(connection, request, under)

    async def _cancel(self) -> None:
        own = f"{self._chance.getrandbits(128):032x}"
        connection = await self._connection()
        request = self._next(None, f"X-Orch-Request-Id: {own}")
        under = _under()
        connection.send(request.head + request.body)
        reading = asyncio.ensure_future(connection.response())
        try:
            await self._pause(100.0)
            stranger = self._chance.random() < 0.1
            key = oddities.STRANGER if stranger else request.key.value
            answer = await ask(
                self._port, "POST", f"/v1/requests/{own}/cancel", f"Authorization: Bearer {key}\r\n"
            )
            under.cancelled = answer.status == 204
            # A request may come after the cancel that was sent behind it; a key may have gone.
            if answer.status not in ((401,) if stranger else (204, 401, 404)):
                detail = f"{request.id}: {answer.status} {bytes(answer.body[:200])!r}"
                self._report.breach("a wrong answer to a cancel", detail)
            response = await reading
        finally:
            reading.cancel()
        await self._judged(request, response, under)

    async def _ask_oddly(self) -> None:
        self._report.lifecycles += 1
        oddity = self._chance.choice(oddities.ALL)
        self._current = oddity.name
        connection = await Connection.to(self._port)
        try:
            connection.send(oddity.data(self._requests.steady_key))
            response = await connection.response()
            self._report.outcomes[f"{response.status} odd"] += 1
            if response.status not in oddity.statuses:
                detail = f"{response.status} {response.error} {bytes(response.body[:200])!r}"
                self._report.breach(f"a wrong answer to {oddity.name}", detail)
        finally:
            connection.close()


def _under() -> Under:
    now = time.monotonic()
    return Under(now, now)
