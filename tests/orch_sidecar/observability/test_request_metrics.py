"""The histograms of OpenTelemetry's conventions: observations, labels and buckets."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client.samples import Sample

from orch_sidecar.api.refusal import Reason
from orch_sidecar.observability import exposition
from orch_sidecar.observability.record import Outcome, RequestRecord
from orch_sidecar.observability.request_metrics import GEN_AI_FAMILIES, GenAi
from tests.orch_sidecar import apis
from tests.orch_sidecar.openmetrics import openmetrics
from tests.orch_sidecar.records import record_of
from vllm_plugin.contracts.profile import ServiceClass

MS = 1_000_000  # nanoseconds
ARRIVED = 5_000 * MS

DURATION = "gen_ai_server_request_duration_seconds"
FIRST_TOKEN = "gen_ai_server_time_to_first_token_seconds"
PER_TOKEN = "gen_ai_server_time_per_output_token_seconds"

# https://github.com/open-telemetry/semantic-conventions-genai, docs/gen-ai/gen-ai-metrics.md
BOUNDS = {
    DURATION: [
        0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92,
    ],
    FIRST_TOKEN: [
        0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    ],
    PER_TOKEN: [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5],
}  # fmt: skip
LABELS = {
    "gen_ai_operation_name": "chat",
    "gen_ai_provider_name": "vllm",
    "gen_ai_request_model": "tiny",
    "measurement_type": "batched_online",
    "pool": "a",
    "class": "interactive",
}


@pytest.fixture
def gen() -> GenAi:
    """Of two pools, of which `a` serves tiny and `b` large."""
    serves = {("a", "tiny"), ("b", "large")}
    types = {"a": "batched_online", "b": "offline"}
    return GenAi(types.__getitem__, lambda pool, model: (pool, model) in serves)


def exchange_of(**more: Any) -> RequestRecord:
    """A whole stream of 11 tokens, of which the first came after 300 ms."""
    given = {
        "model": "tiny", "cost": 1, "stream": True, "pool": "a", "status": 200,
        "service_class": ServiceClass.INTERACTIVE, "first_byte": ARRIVED + 300 * MS,
        "output_tokens": 11, "outcome": Outcome.OK,
    }  # fmt: skip
    return record_of(arrived=ARRIVED, **(given | more))


def served(gen_ai: GenAi, record: RequestRecord, ms: int = 800) -> None:
    """It ended that long after it came."""
    operation = gen_ai.of(record)
    ended = [(record, ARRIVED + ms * MS)]
    operation.ended(ended, None)
    if record.outcome is Outcome.OK:
        operation.generated(ended, None)


def samples(gen_ai: GenAi, name: str) -> list[Sample]:
    text = exposition.head(name, GEN_AI_FAMILIES[name], "histogram", "seconds", openmetrics=True)
    for pool in ("a", "b"):
        for labels, histogram in gen_ai.histograms(name, pool):
            text += histogram.lines(name, labels, exemplars=True)
    [family] = openmetrics(text.encode() + exposition.END)
    assert family.unit == "seconds"
    return family.samples


def samples_of(gen_ai: GenAi, name: str) -> dict[frozenset[tuple[str, str]], tuple[float, float]]:
    """Labels to count and sum."""
    found: dict[frozenset[tuple[str, str]], dict[str, float]] = {}
    for sample in samples(gen_ai, name):
        if "le" not in sample.labels:
            kind = sample.name.removeprefix(f"{name}_")
            found.setdefault(frozenset(sample.labels.items()), {})[kind] = sample.value
    return {labels: (each["count"], each["sum"]) for labels, each in found.items()}


def only(gen_ai: GenAi, name: str, **labels: str) -> tuple[float, float]:
    return samples_of(gen_ai, name)[frozenset((LABELS | labels).items())]


@pytest.mark.parametrize("name", BOUNDS)
def test_buckets_are_those_of_the_conventions(gen: GenAi, name: str) -> None:
    served(gen, exchange_of())
    bounds = [float(s.labels["le"]) for s in samples(gen, name) if "le" in s.labels]
    assert bounds == [*BOUNDS[name], float("inf")]


def test_stream_has_a_duration_a_first_token_and_a_time_per_token(gen: GenAi) -> None:
    served(gen, exchange_of(), ms=800)
    assert samples_of(gen, DURATION).keys() == {frozenset(LABELS.items())}
    assert only(gen, DURATION) == (1, 0.8)
    assert only(gen, FIRST_TOKEN) == (1, 0.3)
    assert only(gen, PER_TOKEN) == pytest.approx((1, 0.05))


@pytest.mark.parametrize(
    ("more", "first_token"),
    [
        # Without a visible first token.
        ({"stream": False}, (0, 0)),
        ({"first_byte": None}, (0, 0)),
        ({"endpoint": apis.RESPONSES}, (0, 0)),  # vLLM begins it before it generates
        # Not one sequence of known length at the engine's pace.
        ({"output_tokens": None}, (1, 0.3)),
        ({"output_tokens": 1}, (1, 0.3)),
        ({"output_tokens": 0}, (1, 0.3)),
        ({"cost": 2}, (1, 0.3)),
        ({"client_limited": True}, (1, 0.3)),
    ],
)
def test_answer_whose_time_per_token_is_not_known_has_a_duration(
    gen: GenAi, more: dict[str, Any], first_token: tuple[float, float]
) -> None:
    served(gen, exchange_of(**more))
    assert only(gen, DURATION) == (1, 0.8)
    assert only(gen, FIRST_TOKEN) == first_token
    assert only(gen, PER_TOKEN) == (0, 0)


@pytest.mark.parametrize("outcome", [Reason.QUEUE_FULL, Outcome.CANCELLED, Outcome.ENGINE_ERROR])
def test_failed_requests_have_durations_by_outcome(gen: GenAi, outcome: Outcome | Reason) -> None:
    served(gen, exchange_of(outcome=outcome), ms=10)
    served(gen, exchange_of(outcome=outcome), ms=20)
    served(gen, exchange_of())
    assert only(gen, DURATION, error_type=outcome.value) == pytest.approx((2, 0.03))
    assert only(gen, DURATION) == (1, 0.8)
    assert only(gen, FIRST_TOKEN) == (1, 0.3)


def test_endpoints_of_one_operation_are_counted_together(gen: GenAi) -> None:
    served(gen, exchange_of())
    served(gen, exchange_of(endpoint=apis.MESSAGES))
    served(gen, exchange_of(endpoint=apis.COMPLETIONS))
    assert only(gen, DURATION)[0] == 2
    assert only(gen, DURATION, gen_ai_operation_name="text_completion")[0] == 1


def test_pool_class_and_measurement_type_are_labels(gen: GenAi) -> None:
    served(gen, exchange_of(service_class=ServiceClass.BULK))
    served(gen, exchange_of(pool="b", model="large"))
    assert only(gen, DURATION, **{"class": "bulk"})[0] == 1
    there = {"pool": "b", "gen_ai_request_model": "large", "measurement_type": "offline"}
    assert only(gen, DURATION, **there)[0] == 1


def test_model_that_its_pool_does_not_serve_is_no_label(gen: GenAi) -> None:
    unknown = frozenset(LABELS.items() - {("gen_ai_request_model", "tiny")})
    for number in range(100):
        served(gen, exchange_of(model=f"model-{number}"))
    served(gen, exchange_of(model=""))
    served(gen, exchange_of(model="large"))  # of another pool
    assert {labels: count for labels, (count, _) in samples_of(gen, DURATION).items()} == {
        unknown: 102
    }
    assert len(gen._cache) <= 1  # nothing is kept of models that clients invent


def test_model_is_a_label_once_its_pool_serves_it() -> None:
    models: set[str] = set()
    gen = GenAi(lambda _: "batched_online", lambda _, model: model in models)
    served(gen, exchange_of())
    models.add("tiny")
    served(gen, exchange_of())
    assert only(gen, DURATION)[0] == 1
    assert len(samples_of(gen, DURATION)) == 2


def test_completions_are_the_only_text_completion() -> None:
    assert [api.operation for api in apis.GENERATING] == ["chat", "text_completion", "chat", "chat"]
