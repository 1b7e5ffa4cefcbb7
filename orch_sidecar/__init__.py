"""A sidecar of a vLLM engine: proxies OpenAI requests and admits what the engine can batch.

`app.pipeline` is the path of a request. CONTRIBUTING.md draws the packages and their imports, and
each package states what it decides and which of its modules are pure: they know no clock, event
loop, HTTP library, vLLM or OpenTelemetry. Of `vllm_plugin` only `contracts` is imported,
of vLLM nothing.
"""
