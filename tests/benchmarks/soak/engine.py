"""The scripted engine as a program: `python -m tests.benchmarks.soak.engine`.

It takes lines of JSON on stdin, reports lines of JSON on stdout, and ends with its stdin.
It counts its sequences by lease and reports whenever they exceed its slots, a request without a
lease, and a lease of another cost than its request.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

import uvloop

from tests.benchmarks.soak import answers
from tests.benchmarks.soak.orders import BEFORE_FIRST_BYTE, Fault, Order, order_of
from tests.integration.scripted_engine import GENERATING, ScriptedEngine
from tests.integration.wire import Answer

_STATUS: Final = {Fault.HTTP_400: 400, Fault.HTTP_500: 500, Fault.HTTP_503: 503}
_TYPES: Final = {400: "BadRequestError", 500: "InternalServerError", 503: "ServiceUnavailable"}
_REMEMBERED: Final = 4096  # orders that were turned away once


def report(**fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


class SoakEngine(ScriptedEngine):
    """A scripted engine that does what orders ask for."""

    def __init__(self, profile: str, slots: int, port: int) -> None:
        super().__init__(slots, profile, port=port)
        # Epochs are counted in one process; another process must not begin with the same one.
        self.epoch = os.getpid() * 1000
        self.answer = self._obey
        self.state_streams: set[Answer] = set()
        self._followed = 0  # how often a state stream was begun
        self.flows = asyncio.Event()
        self.flows.set()
        self._turned_away: OrderedDict[str, None] = OrderedDict()

    async def serve(self, answer: Answer) -> None:
        self.received.clear()
        self.revoked.clear()
        if answer.request.path != "/v1/capabilities/stream":
            await super().serve(answer)
            return
        while self.faults.mute:  # noqa: ASYNC110 (a new stream is as silent as those that there are)
            await asyncio.sleep(0.01)
        self.state_streams.add(answer)
        self._followed += 1
        try:
            await super().serve(answer)
        finally:
            self.state_streams.discard(answer)

    async def _obey(self, answer: Answer) -> None:
        if answer.request.path not in (*GENERATING, answers.EMBEDDINGS):
            answer.json({"detail": "Not Found"}, 404)
            report(breach="unexpected path at an engine", detail=answer.request.path)
            return
        body = answer.request.json()
        order, choices = order_of(body)
        self._check(answer, order, choices)
        if order.watched:
            report(began=order.key)
        try:
            await self._answer(answer, order, choices)
        finally:
            if order.watched:
                report(ended=order.key)

    def _check(self, answer: Answer, order: Order, choices: int) -> None:
        """In the very turn of the event loop in which the request entered."""
        lease = answer.request.lease
        if self.present > self.slots:
            report(
                breach="more sequences in an engine than slots",
                detail=f"{self.present} of {self.slots}: "
                f"{self.engine_state.leases.leased()} leased, with {order.key} of {choices}",
            )
        if lease is None:
            report(breach="a request without a lease", detail=order.key)
        elif lease.rpartition(".")[2] != str(choices):
            report(
                breach="a lease of another cost than its request",
                detail=f"{order.key}: lease for {lease.rpartition('.')[2]}, {choices} sequences",
            )

    async def _answer(self, answer: Answer, order: Order, choices: int) -> None:
        fault = order.fault
        if fault in _STATUS:
            status = _STATUS[fault]
            path = answer.request.path
            document = answers.error_document(path, order, status, _TYPES[status])
            answers.write_json(answer, document, status)
        elif fault is Fault.GONE_ONCE and order.key not in self._turned_away:
            self._turned_away[order.key] = None
            if len(self._turned_away) > _REMEMBERED:
                self._turned_away.popitem(last=False)
            error = {"message": "going", "type": "engine_gone", "code": 503, "retriable": True}
            answer.json({"error": error}, 503, [("retry-after", "1")])
        elif fault in (Fault.RESET_FIRST, Fault.CLOSE_FIRST, Fault.BAD_HEAD, Fault.HANG_FIRST):
            if fault in BEFORE_FIRST_BYTE:
                report(took=f"{answer.request.header('x-request-id')} {order.first}")
            await self._hold()
            await answers.break_off(answer, fault)
        else:
            if not answers.has_usage(answer.request.path, answer.request.json()):
                report(without_usage=order.key)  # at most one more than there are
            await answers.write(answer, order, choices, self._hold)

    async def _hold(self) -> None:
        if not self.flows.is_set():
            await self.flows.wait()

    # Commands.

    async def obey(self, command: dict[str, Any]) -> None:
        for name, argument in command.items():
            await getattr(self, f"do_{name}")(argument)

    async def do_faults(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            setattr(self.faults, name, value)

    async def do_flow(self, flows: bool) -> None:
        if flows:
            self.flows.set()
        else:
            self.flows.clear()

    async def do_report_state(self, fields: dict[str, Any]) -> None:
        self.report(**fields)

    async def do_clear_state_fields(self, _: Any) -> None:
        """Makes it report its real state from now on."""
        self.state_fields = {}

    async def do_state_bytes(self, text: str) -> None:
        for answer in self.state_streams:
            answer.write(text.encode("latin-1"))

    async def do_state_reset(self, _: Any) -> None:
        for answer in list(self.state_streams):
            answer.reset()

    async def do_restart(self, _: Any) -> None:
        await self.restart()

    async def do_count(self, _: Any) -> None:
        counts = {"present": self.present, "leased": self.engine_state.leases.leased()}
        report(count=counts | {"followed": self._followed})


def _read_commands(loop: asyncio.AbstractEventLoop, take: Callable[[str], None]) -> None:
    for line in sys.stdin:
        loop.call_soon_threadsafe(take, line)
    os._exit(0)  # the program that started it is gone


async def _run(given: argparse.Namespace) -> None:
    loop = asyncio.get_running_loop()
    engine = SoakEngine(given.profile, given.slots, given.port)
    commands: asyncio.Queue[str] = asyncio.Queue()

    def failed(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        detail = f"{context.get('message')}: {context.get('exception')!r}"
        report(breach="the scripted engine failed", detail=detail)

    loop.set_exception_handler(failed)
    await engine.start()
    threading.Thread(target=_read_commands, args=(loop, commands.put_nowait), daemon=True).start()
    report(listening=engine.port)
    while True:
        await engine.obey(json.loads(await commands.get()))
        for failure in engine.failures:
            report(breach="a script of the engine failed", detail=repr(failure))
        engine.failures.clear()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", required=True)
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--port", type=int, default=0)
    uvloop.run(_run(parser.parse_args()))


if __name__ == "__main__":
    main()
