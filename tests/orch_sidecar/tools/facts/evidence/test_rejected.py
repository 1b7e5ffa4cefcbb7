"""What is no measurement in the files of other tools: recorded ones with other values."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import pytest

from tests.orch_sidecar.tools.facts.imports import LEFT_OUT, changed, document, refused

VLLM, GUIDE, AIPERF = "vllm_bench_cloud", "guidellm_cloud", "aiperf_cloud"
DETAILS = ("input_lens", "output_lens", "start_times", "ttfts")
CONFIG, REQUESTS = "benchmarks.0.config", "benchmarks.0.requests"
MADE, FIRST = "benchmarks.0.scheduler_metrics.requests_made", f"{REQUESTS}.successful.0"
PHASE = "input_config.phases.0"


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        (VLLM, {"output_throughput": 200.0}, "output_throughput '200.0': must be 1440 tokens over"),
        (VLLM, {"total_output_tokens": 2000}, "output_throughput .*: must be 2000 tokens over"),
        (VLLM, {"max_concurrency": 0}, "max_concurrency is 0: .* greater than 0"),
        (VLLM, {"burstiness": 0}, "burstiness is 0: .* greater than 0"),
        (VLLM, {"request_rate": -1}, "request_rate.* is -1: .* greater than 0"),
        (VLLM, {"duration": "long"}, "duration is 'long': .* valid number"),
        (VLLM, {"completed": True}, "completed is True: .* valid integer"),
        (VLLM, {"failed": LEFT_OUT}, "failed is missing: the file has another format or version"),
        (VLLM, {"backend": "openai-audio"}, "backend is .* 'vllm', 'openai' or 'openai-chat'"),
        (VLLM, {"probe_completed": 3}, "probe_completed is 3: .* not counted"),
        (VLLM, {"measurement_type": "fast"}, "measurement_type is .* 'single_stream', "),
        (VLLM, dict.fromkeys(DETAILS, LEFT_OUT), "input_lens .* requests, as with --save-detailed"),
        (VLLM, {"date": "21.11.2026"}, "date.* is .* does not match format '%Y%m%d-%H%M%S'"),
        (VLLM, {"ttfts": [0.1]}, "ttfts '1 values': .* for each of 45 requests"),
        (VLLM, {"output_lens": [32] * 44 + [31]}, "output_lens .* 1440 tokens of 45 answers"),
        (VLLM, {"output_lens": [32] * 44 + [0]}, "output_lens .* 1440 tokens of 45 answers"),
        *(
            (VLLM, {f"{name}.0": value}, rf"{name}\.0 is {value}: Input should be a finite number")
            for name in ("start_times", "ttfts", "latencies", "queue_times")
            for value in (math.nan, math.inf)
        ),
        (GUIDE, {f"{CONFIG}.warmup.value": 0.1}, rf"{CONFIG}.warmup.value is 0.1: must be none"),
        (GUIDE, {f"{CONFIG}.cooldown.percent": 0.2}, rf"{CONFIG}.cooldown.percent .* must be none"),
        (GUIDE, {f"{MADE}.successful": 0}, f"{MADE}.successful is 0: .* or equal to 1"),
        (GUIDE, {f"{MADE}.successful": 50}, "requests.successful '45 requests': must be all 50"),
        (GUIDE, {f"{CONFIG}.strategy.type_": "burst"}, ".*type_ is 'burst': .* 'synchronous'"),
        (GUIDE, {f"{CONFIG}.backend.kind": "vllm_python"}, ".*kind is .* 'openai_http'"),
        (GUIDE, {f"{FIRST}.output_tokens": None}, f"{FIRST}.output_tokens is None: .* valid int"),
        (GUIDE, {f"{FIRST}.output_tokens": 0}, f"{FIRST}.output_tokens is 0: .* greater than 0"),
        (GUIDE, {f"{FIRST}.info.timings.request_end": None}, ".*request_end is .* valid number"),
        (GUIDE, {REQUESTS: {}}, f"{REQUESTS}.successful is missing"),
        (GUIDE, {"metadata.version": 1}, r"metadata\.version is 1"),
        (GUIDE, {"metadata.version": "2"}, r"metadata\.version is '2'"),
        # Reports before 0.5.
        (GUIDE, {"metadata": LEFT_OUT}, r"metadata\.version is missing: the file has another"),
        (GUIDE, {"config.metadata.labels.measurement_type": "fast"}, ".*measurement_type is 'fast"),
        (AIPERF, {f"{PHASE}.type": "user_centric"}, rf"{PHASE}\.type is"),
        (AIPERF, {f"{PHASE}.name": "warmup"}, "input_config.phases '0 phases': must have one"),
        (AIPERF, {"was_cancelled": True}, "was_cancelled is True"),
        (AIPERF, {"schema_version": "2.0"}, "schema_version is '2.0'"),
        (AIPERF, {"total_usage_completion_tokens": LEFT_OUT}, "total_usage_completion_tokens.avg "),
        # Its clients cannot have had their answers in it.
        (AIPERF, {"benchmark_duration.avg": 8.0}, "the duration '8 s': is too short: at most 4 at"),
    ],
)
def test_run_is_rejected_with_field_value_and_rule(
    name: str, values: Mapping[str, Any], said: str
) -> None:
    found = refused(name, changed(name, values))
    assert re.match(said, found), found


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("vllm_bench_all_failed", "completed is 0"),
        ("vllm_throughput", "backend is missing"),
        # Requests were due before the run began.
        ("guidellm_early", "info.timings.targeted_start '-0.*: 20 of 45 requests were due before"),
    ],
)
def test_recorded_file_without_a_run_is_rejected(name: str, said: str) -> None:
    found = refused(name, document(name))
    assert re.match(said, found), found


@pytest.mark.parametrize("name", [VLLM, GUIDE, AIPERF])
@pytest.mark.parametrize("file", [[], "file", None, {}, {"results": []}, {"benchmarks": []}])
def test_other_document_is_rejected(name: str, file: object) -> None:
    assert refused(name, file)
