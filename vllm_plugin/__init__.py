"""The vLLM plugin: enforces a batching profile, reports the scheduler's state, labels spans.

It imports nothing of `orch_sidecar`, which imports only `profile`, `lease_protocol`, `dsse`,
`statement` and `token_time` of it. Entry points and the composition root are in `register`; every
use of vLLM is listed in `vllm_names`.

Pure: `allowlist`, `conditions`, `connectors`, `curve`, `dsse`, `engine_facts`, `engine_state`,
`evidence`, `hooks`, `kv_cache`, `lease_protocol`, `leases`, `prefix_cache`, `profile`, `ranks`,
`readiness`, `request_numbers`, `routes`, `stall_detector`, `statement`, `step_time`, `steps`,
`symbols`, `token_time`, `vllm_names`, `workloads`.
They import no asyncio, HTTP library, vLLM or OpenTelemetry, and read no clock.
"""
