"""What may happen to an admission: rules, requests, reports."""

from __future__ import annotations

from hypothesis import strategies as st

from orch_sidecar.admission.types import AdmissionRequest, StepTime
from tests.orch_sidecar.admission.examples import bulk_only, kv_of
from tests.orch_sidecar.admission.examples import class_rules as of
from tests.orch_sidecar.admission.examples import rules as rules_of
from vllm_plugin.contracts.kv_cache import KvCache, KvGroup
from vllm_plugin.contracts.profile import BatchBounds, FullQueue, ServiceClass

PICK = st.integers(0, 1000)  # an index into whatever there is, modulo its length
UP_TO = [BatchBounds(least=1, most=most) for most in range(9)[1:]]

RULES = (
    rules_of(aging_s=2.0),
    rules_of(
        of(queue_capacity=4, tpot_p95_ms=13.0, ttft_p95_ms=3000.0, batch=UP_TO[3]),
        of(queue_capacity=4, tpot_p95_ms=15.0, max_wait_s=20.0, batch=UP_TO[5]),
        bulk_share=0.2,
        aging_s=1.0,
    ),
    rules_of(
        of(queue_capacity=2, max_wait_s=5.0, batch=UP_TO[1]),
        of(queue_capacity=2),
        bulk_share=0.05,
        aging_s=0.5,
        full_queue=FullQueue.DROP_LRU,
    ),
    rules_of(
        of(queue_capacity=0),
        of(queue_capacity=1, ttft_p95_ms=200.0),
        aging_s=None,
    ),
    rules_of(of(ttft_p95_ms=300.0), of(), reclaim=True, aging_s=None),
    bulk_only(of(queue_capacity=4, batch=UP_TO[4])),
)

REQUESTS = st.builds(
    AdmissionRequest,
    st.sampled_from((ServiceClass.INTERACTIVE, ServiceClass.BULK)),
    st.sampled_from((1, 1, 1, 1, 2, 3, 6)),
    st.sampled_from((0, 10, 50, 400)),
    st.sampled_from((None, 10, 100)),
    deadline_ms=st.sampled_from((None, None, None, None, 0.0, 40.0, 1000.0)),
    max_wait_ms=st.sampled_from((None, None, None, None, 0.0, 40.0, 800.0)),
    may_queue=st.sampled_from((True, True, True, True, False)),
)
SLOTS = st.sampled_from((1, 2, 2, 3, 4, 4, 8, None))
PASSED_S = st.sampled_from((0.0, 0.0, 0.01, 0.03, 0.3))
KNOWN = st.fixed_dictionaries(
    {
        "foreign": st.sampled_from((0, 0, 0, 1, 3)),
        "kv": st.sampled_from((None, kv_of(500), KvCache(62, (KvGroup(16, 4, 8), KvGroup(16))))),
        "batch_seen": st.sampled_from((0, 0, 1, 4)),
        "kv_usage": st.sampled_from((0.0, 0.5, 0.95)),
        "step_time": st.sampled_from((None, StepTime(10.0, 1.0, 1.0, 8))),
        "prefill_tokens_per_s": st.sampled_from((None, 100.0)),
    }
)
