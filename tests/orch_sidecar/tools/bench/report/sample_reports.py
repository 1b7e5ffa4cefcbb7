"""Results whose reports are looked at."""

from __future__ import annotations

import random
from dataclasses import replace

from orch_sidecar.tools.bench.load.call import Call
from orch_sidecar.tools.bench.results.result import Result
from orch_sidecar.tools.bench.results.sweep import Sweep, sweep_of
from orch_sidecar.tools.facts.labels.load import TraceDocument
from orch_sidecar.tools.facts.tables.notes import Arrivals
from tests.orch_sidecar.tools.bench.sample_results import ONLINE, answered, refused, result
from tests.orch_sidecar.tools.facts.snapshots import document
from vllm_plugin.contracts.profile import ServiceClass

BOUNDED = replace(ONLINE, slo_ms={"ttft": 200.0, "tpot": 20.0})
HOSTILE = "org/<script>alert(1)</script>'\"&-Instruct-with-a-name-that-is-longer-than-any-column"


def calls(count: int, seed: int = 0, *, faster: float = 1.0) -> list[Call]:
    """Requests whose times vary, and some that are refused."""
    generator = random.Random(seed)
    made = []
    for number in range(count):
        at_s = 0.1 * number
        if number % 50 == 49:
            made.append(refused(at_s))
            continue
        wait_s = generator.expovariate(50)
        made.append(
            answered(
                at_s,
                first_s=(0.05 + wait_s) / faster,
                token_s=generator.uniform(0.008, 0.012) / faster,
                queue_ms=1000 * wait_s / faster,
                tokens=generator.randint(8, 24),
            )
        )
    return made


def online(count: int = 300, *, seed: int = 0, faster: float = 1.0) -> Result:
    before = document(pool="cloud")
    after = document(pool="cloud", steps_by_batch={"1": [30, 0.3], "4": [65, 1.3], "6": [5, 0.1]})
    return result(calls(count, seed, faster=faster), BOUNDED, documents=[before, after])


def hostile() -> Result:
    """Of a model whose name is markup, with reasons that are, too."""
    given = {"model_name": HOSTILE, "gpu": HOSTILE, "engine": f"{HOSTILE} 1"}
    found = result([*calls(40), refused(5.0, HOSTILE)], BOUNDED, given=given)
    engine = found.engine.model_copy(update={"model_name": HOSTILE, "gpu": HOSTILE})
    scenario = replace(found.scenario, prompts=HOSTILE)
    update = {"engine": engine, "reasons": [HOSTILE], "shortfalls": [HOSTILE]}
    return found.model_copy(update={**update, "scenario": scenario})


def of_two_classes() -> Result:
    """Interactive requests beside bulk ones."""
    made = calls(120)
    for number, call in enumerate(made):
        call.service_class = ServiceClass.BULK if number % 3 == 0 else ServiceClass.INTERACTIVE
    trace = TraceDocument("conv.csv", "0" * 64, 80, (0.0, None), 1.0, 1.0, bulk_clients=2)
    return result(made, replace(BOUNDED, trace=trace))


def sweep(*, clients: tuple[int, ...] = (1, 2, 4, 8), faster: float = 1.0) -> Sweep:
    """Closed loops whose batches grow with their clients."""
    results = []
    for count in clients:
        scenario = replace(BOUNDED, arrivals=Arrivals.CLOSED_LOOP, clients=count, rate_per_s=None)
        made = [
            answered(0.2 * number, token_s=(0.005 + 0.002 * client) / faster, due=False)
            for number in range(20)
            for client in range(count)
        ]
        found = result(made, scenario)
        assert found.batches is not None
        batches = replace(found.batches, mean=float(count))
        results.append(found.model_copy(update={"batches": batches}))
    return sweep_of(results)
