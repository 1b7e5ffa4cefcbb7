"""Metrics of requests: counts, and the number of series.

The ring of the requests that ended last.
"""

from __future__ import annotations

import asyncio
import random
import string
import time
from collections.abc import AsyncIterator, Iterable
from typing import Any

import aiohttp
import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families as classic

from orch_sidecar.api.endpoints import ENDPOINTS
from orch_sidecar.api.refusal import Reason
from orch_sidecar.config.configuration import load_pools
from orch_sidecar.config.settings import SidecarSettings
from orch_sidecar.observability import metrics as module
from orch_sidecar.observability.exposition import OPENMETRICS, TEXT
from orch_sidecar.observability.metrics import Metrics
from orch_sidecar.observability.recent import RecentRequests
from orch_sidecar.observability.record import Outcome, RequestRecord
from orch_sidecar.observability.tracing import SpanCounts
from orch_sidecar.pools.registry import PoolRegistry
from tests.orch_sidecar import apis
from tests.orch_sidecar.openmetrics import openmetrics
from tests.orch_sidecar.records import record_of
from vllm_plugin.contracts.profile import ServiceClass

MS = 1_000_000  # nanoseconds
HISTOGRAMS = {
    "orch_admission_wait_seconds",
    "orch_time_to_first_byte_seconds",
    "orch_prediction_error_ratio",
    "gen_ai_server_request_duration_seconds",
    "gen_ai_server_time_to_first_token_seconds",
    "gen_ai_server_time_per_output_token_seconds",
}

Samples = dict[str, float]


@pytest.fixture
async def pools() -> AsyncIterator[PoolRegistry]:
    """One pool of the cloud profile, that serves the model tiny."""
    settings = SidecarSettings(profile="cloud")
    async with aiohttp.ClientSession() as session:
        pools = PoolRegistry(load_pools(settings), settings, session)
        pools.all[0].watcher.models = frozenset({"tiny"})
        yield pools


@pytest.fixture
def metrics(pools: PoolRegistry) -> Metrics:
    """Of that pool."""
    return Metrics(pools)


def exchange_of(**more: Any) -> RequestRecord:
    """A stream of 34 tokens that has just ended well, after 300 ms."""
    now = time.monotonic_ns()
    given = {
        "arrived": now - 300 * MS, "model": "tiny", "cost": 1, "stream": True, "pool": "cloud",
        "status": 200, "service_class": ServiceClass.INTERACTIVE, "admitted": now - 299 * MS,
        "first_byte": now - 200 * MS, "input_tokens": 12, "output_tokens": 34,
        "outcome": Outcome.OK,
    }  # fmt: skip
    return record_of(**(given | more))


async def text_of(metrics: Metrics, accept: str = "") -> bytes:
    """All pieces."""
    pieces, content_type = metrics.exposition(accept)
    assert content_type == (OPENMETRICS if accept else TEXT)
    return b"".join([piece async for piece in pieces])


async def samples_of(metrics: Metrics) -> Samples:
    """Sample (its name, and its labels less what all have) to value."""
    text = (await text_of(metrics)).decode()
    found = {}
    for family in classic(text):
        for sample in family.samples:
            labels = {k: v for k, v in sample.labels.items() if k != "pool"}
            found[" ".join([sample.name, *(f"{k}={v}" for k, v in sorted(labels.items()))])] = (
                sample.value
            )
    return found


def samples(families: Iterable[Metric]) -> dict[tuple[str, str], float]:
    """Of what does not change between two looks: name and labels to value."""
    return {
        (sample.name, str(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
        if not sample.name.startswith("process_")
    }


INTERACTIVE = "class=interactive measurement_type=batched_online"


async def test_tokens_and_answers_without_usage_are_counted(
    metrics: Metrics,
) -> None:
    metrics.request_ended(exchange_of())
    metrics.request_ended(exchange_of(output_tokens=6, input_tokens=None))
    unknown = {"output_tokens": None, "input_tokens": None}
    metrics.request_ended(exchange_of(**unknown))
    metrics.request_ended(exchange_of(**unknown, outcome=Outcome.CANCELLED))
    found = await samples_of(metrics)
    assert found[f"orch_output_tokens_total {INTERACTIVE}"] == 40
    assert found[f"orch_input_tokens_total {INTERACTIVE}"] == 12
    assert found[f"orch_answers_total {INTERACTIVE} tokens=known"] == 2
    assert found[f"orch_answers_total {INTERACTIVE} tokens=unknown"] == 1
    assert found["orch_output_tokens_total class=bulk measurement_type=batched_online"] == 0


async def test_every_request_between_two_scrapes_is_counted(
    metrics: Metrics,
) -> None:
    """They are counted some in a row."""
    total = 0
    for more in (1, 31, 32, 33, 100):
        for _ in range(more):
            metrics.request_ended(exchange_of())
        total += more
        found = await samples_of(metrics)
        assert found[f"orch_output_tokens_total {INTERACTIVE}"] == 34 * total
        assert found[f"orch_input_tokens_total {INTERACTIVE}"] == 12 * total
        assert found[f"orch_admission_wait_seconds_count {INTERACTIVE}"] == total


async def test_shared_generation_is_counted_once_and_its_requests_have_durations(
    metrics: Metrics,
) -> None:
    metrics.request_ended(exchange_of(shared=True))
    metrics.generation_ended(exchange_of())
    metrics.request_ended(exchange_of(shared=True, coalesced=True))
    found = await samples_of(metrics)
    assert found[f"orch_output_tokens_total {INTERACTIVE}"] == 34
    assert found[f"orch_answers_total {INTERACTIVE} tokens=known"] == 1
    assert found["orch_coalesced_total measurement_type=batched_online"] == 1
    counts = {
        name.partition("_seconds_count")[0]: value
        for name, value in found.items()
        if name.startswith("gen_ai_server_") and "_count " in name
    }
    assert counts == {
        "gen_ai_server_request_duration": 2,
        "gen_ai_server_time_to_first_token": 1,
        "gen_ai_server_time_per_output_token": 1,
    }


async def test_failed_generation_counts_no_tokens(metrics: Metrics) -> None:
    metrics.generation_ended(exchange_of(outcome=Reason.ENGINE_FAILED))
    metrics.generation_ended(exchange_of(admitted=None))
    found = await samples_of(metrics)
    assert found[f"orch_output_tokens_total {INTERACTIVE}"] == 0
    assert found[f"orch_answers_total {INTERACTIVE} tokens=unknown"] == 0


async def test_request_without_a_pool_is_no_generation(metrics: Metrics) -> None:
    metrics.request_ended(
        exchange_of(pool=None, admitted=None, first_byte=None, status=503, outcome=Reason.NO_POOL)
    )
    metrics.request_ended(
        exchange_of(endpoint=ENDPOINTS["/tokenize"], cost=0, stream=False, admitted=None)
    )
    found = await samples_of(metrics)
    assert not [name for name in found if name.startswith("gen_ai_")]
    counted = "orch_requests_total measurement_type="
    unplaced = f"{counted}none outcome=no_pool route=/v1/chat/completions status=503"
    assert found[unplaced] == 1
    assert found[f"{counted}batched_online outcome=ok route=/tokenize status=200"] == 1


def anything(chance: random.Random) -> RequestRecord:
    """What a request may be by what its client sends, and by what becomes of it."""
    text = "".join(chance.choices(string.printable, k=chance.randint(0, 30)))
    endings: list[tuple[Outcome | Reason, int]]
    endings = [(Outcome.OK, 200), (Outcome.CANCELLED, 0), (Reason.QUEUE_FULL, 429)]
    outcome, status = chance.choice(endings)
    return exchange_of(
        endpoint=chance.choice(apis.GENERATING),
        model=chance.choice(["tiny", "", text]),
        cost=chance.randint(1, 4),
        stream=chance.random() < 0.5,
        service_class=chance.choice(list(ServiceClass)),
        outcome=outcome,
        status=status,
        admitted=None if outcome is Reason.QUEUE_FULL else time.monotonic_ns(),
        output_tokens=chance.choice([None, 0, 1, 34]),
        trace_id=chance.choice([b"", chance.randbytes(16)]),
        id=text,
        request_id=text,
        correlation_id=text,
    )


async def test_number_of_series_is_bounded(metrics: Metrics) -> None:
    chance = random.Random(39)
    for _ in range(2000):  # every kind has been there
        metrics.request_ended(anything(chance))
    before = (await samples_of(metrics)).keys()
    for _ in range(1000):
        metrics.request_ended(anything(chance))
    assert (await samples_of(metrics)).keys() == before
    # Operations, whether the model is known, classes; outcomes of durations.
    durations = [name for name in before if name.startswith("gen_ai_server_request_duration")]
    assert len({name for name in durations if "_count" in name}) == 2 * 2 * 3 * 3


async def test_records_count_alike_one_by_one_and_many_at_once(pools: PoolRegistry) -> None:
    chance = random.Random(42)
    one_by_one, at_once = Metrics(pools), Metrics(pools)
    for _ in range(300):
        record = anything(chance)
        record.shared = chance.random() < 0.3
        record.coalesced = record.shared and chance.random() < 0.5
        for metrics in (one_by_one, at_once):
            metrics.request_ended(record)
            if record.shared and not record.coalesced:
                metrics.generation_ended(record)
        one_by_one.catch_up()
    wanted, found = await samples_of(one_by_one), await samples_of(at_once)
    for name, value in wanted.items():  # of the others the clock is read
        if name.startswith("orch_") or "_count" in name:
            assert found[name] == pytest.approx(value), name
    assert found.keys() == wanted.keys()


async def test_both_formats_are_valid_and_equal(metrics: Metrics) -> None:
    chance = random.Random(40)
    for _ in range(300):
        metrics.request_ended(anything(chance))
    families = openmetrics(await text_of(metrics, OPENMETRICS))
    assert samples(families) == samples(classic((await text_of(metrics)).decode()))
    assert {family.name for family in families if family.type == "histogram"} > HISTOGRAMS
    for family in families:
        if family.type == "counter":
            assert {s.name for s in family.samples} <= {f"{family.name}_total"}


async def test_only_sampled_traces_are_exemplars_and_only_in_openmetrics(
    metrics: Metrics,
) -> None:
    metrics.request_ended(exchange_of())
    assert b"trace_id" not in await text_of(metrics, OPENMETRICS)
    metrics.request_ended(exchange_of(trace_id=b"\x0a\xbc"))
    metrics.request_ended(exchange_of())
    assert b"trace_id" not in await text_of(metrics)
    found = {
        family.name: [s.exemplar for s in family.samples if s.exemplar is not None]
        for family in openmetrics(await text_of(metrics, OPENMETRICS))
        if family.name in HISTOGRAMS
    }
    assert {name for name, exemplars in found.items() if exemplars} == HISTOGRAMS - {
        "orch_prediction_error_ratio"
    }
    for exemplars in found.values():
        for exemplar in exemplars:
            assert exemplar.labels == {"trace_id": "0abc"}
            assert float(str(exemplar.timestamp)) == pytest.approx(time.time(), abs=60)


async def test_spans_are_counted_only_where_traces_are_exported(pools: PoolRegistry) -> None:
    assert not [name for name in await samples_of(Metrics(pools)) if "spans" in name]
    spans = SpanCounts()
    metrics = Metrics(pools, spans)
    spans.exported = 7
    spans.dropped["queue_full"] += 3
    found = {name: n for name, n in (await samples_of(metrics)).items() if "orch_spans" in name}
    assert found == {
        "orch_spans_exported_total": 7,
        "orch_spans_dropped_total reason=queue_full": 3,
        "orch_spans_dropped_total reason=rejected": 0,
        "orch_spans_dropped_total reason=undelivered": 0,
        "orch_spans_dropped_total reason=invalid": 0,
    }


POOLS = 30


@pytest.fixture
async def registry() -> PoolRegistry:
    entries = [
        {"name": f"e-{number}", "url": f"http://127.0.0.1:{1 + number}", "profile": "cloud"}
        for number in range(POOLS)
    ]
    settings = SidecarSettings.model_validate({"pools": entries})
    async with aiohttp.ClientSession() as session:
        return PoolRegistry(load_pools(settings), settings, session)


async def test_samples_of_all_pools_stand_together_in_each_family(registry: PoolRegistry) -> None:
    families = openmetrics(await text_of(Metrics(registry), OPENMETRICS))
    names = [family.name for family in families]
    assert len(set(names)) == len(names), "a family is one group of lines"
    names_of_pools = [pool.name for pool in registry]
    for family in families:
        of_pools = [s.labels["pool"] for s in family.samples if "pool" in s.labels]
        assert list(dict.fromkeys(of_pools)) in ([], names_of_pools)


async def test_event_loop_runs_between_the_pieces(
    registry: PoolRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With pieces as short as they can be: one pool of one family."""
    monkeypatch.setattr(module, "PIECE_S", -1.0)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    pieces, _ = Metrics(registry).exposition("")
    sizes = [len(piece) async for piece in pieces]
    counting.cancel()
    assert turns >= len(sizes) - 2 > 30 * POOLS
    assert max(sizes[:-1]) < 10_000


def test_last_ones_are_kept_and_all_are_numbered() -> None:
    recent = RecentRequests(most=3)
    records = [record_of() for _ in range(5)]
    recent.add([(record, at) for at, record in enumerate(records[:2])])
    recent.add([(record, at) for at, record in enumerate(records[2:], 2)])
    assert [at for _, at in recent.all()] == [2, 3, 4]
    assert recent.total == 5
