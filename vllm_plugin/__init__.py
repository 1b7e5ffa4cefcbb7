"""The vLLM plugin: enforces a batching profile, reports the scheduler's state, labels spans.

It imports nothing of `orch_sidecar`, which imports only `profile`, `lease_protocol`, `dsse` and
`statement` of it. Entry points and the composition root are in `register`; every use of vLLM is
listed in `hooks`.

Pure: `allowlist`, `connectors`, `curve`, `dsse`, `engine_state`, `evidence`,
`evidence_hooks`, `hook`, `hooks`, `kv_cache`, `lease_protocol`, `leases`, `profile`, `readiness`,
`routes`, `stall_detector`, `statement`, `step_time`, `steps`, `symbols`, `workloads`.
They import no asyncio, HTTP library, vLLM or OpenTelemetry, and read no clock.
"""
