"""The vLLM plugin: enforces a batching profile, reports the scheduler's state, labels spans.

Here is only what vLLM or Python loads by name: `register` has vLLM's entry points and composes the
packages, `endpoint` serves the engine's state, `serve` runs `vllm serve`, and `allowlist` is run by
`orch_vllm_plugin.pth` at the start of each interpreter.

Dependencies point down: `api_server`, `evidence`, `adapters`, `enforcement`, `state`,
`contracts`. vLLM is imported here and in `adapters` alone. Nothing of `orch_sidecar` is imported,
which imports `contracts` alone.

Pure: `allowlist`. A pure module imports no asyncio, HTTP library, vLLM or OpenTelemetry, and reads
no clock.
"""
