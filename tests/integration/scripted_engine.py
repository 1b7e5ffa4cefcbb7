"""An engine that does what a test scripts, down to single bytes on the wire.

Speaks what vLLM with the orch plugin speaks: the generating endpoints, `/v1/models`, the state
stream (in `scripted_stream`), the revocation of leases and claims of slots. State, leases and
claims are the plugin's own `EngineState`, so both sides of the contract are tested against one
meaning; HTTP is written here. It runs on the test's event loop and, by what a test sets,
misbehaves.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from tests.integration import answers
from tests.integration.scripted_stream import state_stream
from tests.integration.wire import Answer, EngineWire, Received
from tests.vllm_plugin.examples import SETTINGS
from vllm_plugin.contracts.kv_cache import KvCache, KvGroup
from vllm_plugin.contracts.lease_protocol import (
    CLAIMS_PATH,
    NO_ADAPTER,
    NO_SLOT,
    parse_adapter,
    parse_claim,
    parse_lease,
)
from vllm_plugin.contracts.senders import NOT_A_SIDECAR, SidecarKeys
from vllm_plugin.state.engine_facts import Conditions, EngineFacts, Hardware
from vllm_plugin.state.engine_state import EngineState
from vllm_plugin.state.leases import Rejected


def is_for_sidecars(request: Received) -> bool:
    """Whether a request names an instance or a lease in its path or query."""
    if request.path == "/v1/capabilities/stream":
        return "instance=" in request.query
    return request.path.startswith(("/v1/capabilities/leases/", CLAIMS_PATH))


def knows(keys: SidecarKeys, answer: Answer) -> bool:
    """Whether a request comes from a sidecar, as the plugin decides it."""
    transport, fields = answer.wire.transport, answer.request.fields
    return transport is not None and keys.know(
        {
            "client": transport.get_extra_info("peername")[:2],
            "server": transport.get_extra_info("sockname")[:2],
            "headers": [(name.encode(), value.encode()) for name, value in fields],
        }
    )


Script = Callable[[Answer], Awaitable[None]]

GENERATING = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")

# What an engine may report of its speed: 10 ms and one more for each sequence.
STEP_TIME = {
    "t0_ms": 10.0, "c_ms": 1.0, "alpha": 1.0, "largest": 64, "samples": 100, "batches": 5,
    "error": 0.01, "quality": "good",
}  # fmt: skip

_REJECTIONS = {
    Rejected.SPENT: ("lease_spent", 409),
    Rejected.NO_SLOT: (NO_SLOT, 429),
    Rejected.NO_ADAPTER: (NO_ADAPTER, 429),
    Rejected.BUSY: ("engine_gone", 503),
    Rejected.TOO_LARGE: ("invalid_request_error", 400),
}

_PROFILES = {"home": "single_stream", "cloud": "batched_online", "offline": "offline"}


@dataclass(slots=True)
class Faults:
    """What is wrong with this engine's plugin, or special. As it stands: nothing."""

    stream_status: int = 200  # of the state stream
    claim_status: int = 200  # of what is claimed
    mute: bool = False  # the state stream sends nothing more
    stream: Script | None = None  # what follows the first event of the state stream
    reports_ended: bool = True  # `ended` events are sent
    ended_delay_s: float = 0.0  # between an abort and its end in the engine
    holds_aborted: asyncio.Event | None = None  # aborted requests stay until this is set
    rejects_unread: bool = False  # requests without a slot, before their bodies have come
    gone: bool = False  # its core has died, and its API server has yet to


class ScriptedEngine:
    """One engine on an ephemeral port. `answer` is the script of every generating request,
    unless `scripts` holds others, which are used up first."""

    def __init__(
        self,
        slots: int = 4,
        profile: str = "cloud",
        models: tuple[str, ...] = ("tiny",),
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self.host = host
        self.slots = slots
        self.profile = profile
        self.models = models
        self.state_fields: dict[str, Any] = {}  # of its state, besides or instead of `engine_state`
        self.features: dict[str, Any] = {}
        self.adapters: tuple[str, ...] = ()  # LoRA adapters that it serves besides
        self.faults = Faults()
        self.api_key: str | None = None
        self.sidecar_keys: SidecarKeys | None = None  # None: of a release that asks for none
        self.of_sidecars: list[Received] = []  # what only sidecars are served
        self.answer: Script = answers.answer
        self.scripts: deque[Script] = deque()
        self.pages: dict[str, Callable[[Answer], None]] = {}  # further ones, by path
        self.received: list[Received] = []
        self.revoked: list[str] = []
        self.claimed = Counter[str]()  # calls, by instance
        self.peak = 0
        self.connections = 0
        self.failures: list[BaseException] = []  # of scripts: a test must not end with any
        self.port = port
        self.epoch = 0
        self.wires: set[EngineWire] = set()
        self.engine_state = self._new_state()
        self._server: asyncio.Server | None = None
        self.tasks: set[asyncio.Task[None]] = set()

    # Life.

    async def start(self) -> None:
        """Listens: on a free port at first, later on the same one."""
        loop = asyncio.get_running_loop()
        self.epoch += 1
        self.engine_state = self._new_state()
        self._server = await loop.create_server(
            lambda: EngineWire(self), self.host, self.port, reuse_address=True
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Dies: every connection is reset, every request is gone."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for wire in list(self.wires):
            wire.reset()
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def report(self, **fields: Any) -> None:
        """Reports these fields of its state, by a heartbeat to all readers."""
        self.state_fields |= fields
        for subscriber in self.engine_state._subscribers:
            subscriber.wake()

    def run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task that ends with this engine."""
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    # What tests look at.

    @property
    def present(self) -> int:
        """Sequences in the engine now."""
        return self.engine_state.leases.foreign_to(None)

    @property
    def generating(self) -> list[Received]:
        """The generating requests it has got."""
        return [request for request in self.received if request.path in GENERATING]

    @property
    def streams(self) -> int:
        """How many listen to the state stream."""
        return len(self.engine_state._subscribers)

    # Requests.

    async def serve(self, answer: Answer) -> None:
        """Answers one request. Cancelled when its connection is lost."""
        request = answer.request
        if self.api_key is not None and request.header("authorization") != f"Bearer {self.api_key}":
            answer.json({"error": "Unauthorized"}, 401)
        elif is_for_sidecars(request) and not self._knows(answer):
            answer.json({"error": {"message": NOT_A_SIDECAR, "type": "not_a_sidecar"}}, 403)
        elif request.path == "/v1/capabilities/stream":
            await self._stream(answer)
        elif request.path.startswith("/v1/capabilities/leases/"):
            self._revoke(answer)
        elif request.path.startswith(CLAIMS_PATH):
            self._claim(answer)
        elif request.path in self.pages:
            self.pages[request.path](answer)
        else:
            self.received.append(request)
            if request.method == "POST" and request.path not in answers.NOT_GENERATING:
                await self._generate(answer)
            elif self.scripts:
                await self.scripts.popleft()(answer)
            else:
                await answers.answer(answer)

    def rejects_unread(self, answer: Answer) -> bool:
        """Rejects a request of which only the head has come, as vLLM does, if it has no slots."""
        lease = parse_lease(answer.request.lease or "")
        if not self.faults.rejects_unread or lease is None:
            return False
        if self.present + lease.cost <= self.slots:
            return False  # it waits for the body
        rejected = self._enter(answer)
        assert isinstance(rejected, Rejected)
        _reject(answer, rejected)
        return True

    def _knows(self, answer: Answer) -> bool:
        """Whether a sidecar sent a request; all did that only sidecars send."""
        if is_for_sidecars(answer.request):
            self.of_sidecars.append(answer.request)
        return self.sidecar_keys is None or knows(self.sidecar_keys, answer)

    def _enter(self, answer: Answer) -> int | Rejected:
        lease = answer.request.lease if self._knows(answer) else None
        urgent = answer.request.header("x-orch-class") != "bulk"
        adapter = parse_adapter(answer.request.header("x-orch-adapter") or "")
        return self.engine_state.enter(lease, urgent=urgent, adapter=adapter)

    async def _generate(self, answer: Answer) -> None:
        if self.faults.gone:
            error = {"message": "going", "type": "engine_gone", "code": 503, "retriable": True}
            answer.json({"error": error}, 503, [("retry-after", "1")])
            return
        key = self._enter(answer)
        if isinstance(key, Rejected):
            _reject(answer, key)
            return
        if self.engine_state.adapters:
            self.engine_state.model_received(key, answer.request.json().get("model", ""))
        self.peak = max(self.peak, self.present)
        script = self.scripts.popleft() if self.scripts else self.answer
        engine_state = self.engine_state
        try:
            await script(answer)
        except asyncio.CancelledError:
            # The client is gone. vLLM lets go of the request a little later.
            if engine_state is self.engine_state:
                self.run(self._abort(engine_state, key))
            raise
        except BaseException:
            self._left(engine_state, key)
            raise
        # No turn of the event loop lies between the script's last byte and this.
        self._left(engine_state, key)

    async def _abort(self, engine_state: EngineState, key: int) -> None:
        await asyncio.sleep(self.faults.ended_delay_s)
        if self.faults.holds_aborted is not None:
            await self.faults.holds_aborted.wait()
        self._left(engine_state, key)

    def _left(self, engine_state: EngineState, key: int) -> None:
        if self.faults.reports_ended:
            engine_state.leave(key)
        else:
            engine_state.leases.leave(key)

    # The plugin.

    def _new_state(self) -> EngineState:
        facts = EngineFacts(
            engine_version="0.32.0",
            pool="default",
            models=self.models,
            weights="/models/scripted",
            ctx_max=2048,
            profile=self.profile,
            measurement_type=_PROFILES[self.profile],
            batching=self.profile != "home",
            slots_total=self.slots,
            epoch=f"epoch-{self.epoch}",
            features=self.features,
            hardware=Hardware("CPU (scripted)", 0, "FP32"),
            conditions=Conditions("none", "none", "float32", "off", "CPU_ATTN", 1, 1, **SETTINGS),
        )
        engine_state = EngineState(facts)
        engine_state.kv_cache = KvCache(4096, (KvGroup(16),))
        engine_state.set_models(self.models, self.adapters)
        return engine_state

    def _revoke(self, answer: Answer) -> None:
        lease = answer.request.path.rpartition("/")[2]
        self.revoked.append(lease)
        answer.json({"ended": self.engine_state.leases.revoke(lease)})

    def _claim(self, answer: Answer) -> None:
        instance = answer.request.path.rpartition("/")[2]
        self.claimed[instance] += 1
        if self.faults.claim_status != 200:
            answer.json({"detail": "no"}, self.faults.claim_status)
            return
        reads = self.engine_state.claim(instance, parse_claim(answer.request.body, self.slots))
        answer.json({}, 200 if reads else 409)

    async def _stream(self, answer: Answer) -> None:
        if self.faults.stream_status == 200:
            await state_stream(self, answer)
        else:
            answer.json({"detail": "no"}, self.faults.stream_status)


Engine = Callable[..., Awaitable[ScriptedEngine]]


def _reject(answer: Answer, rejected: Rejected) -> None:
    kind, status = _REJECTIONS[rejected]
    error = {"message": rejected.value, "type": kind, "code": status}
    answer.json({"error": error}, status)
