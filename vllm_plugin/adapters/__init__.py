"""Translates between vLLM's objects and the plugin's own: statistics, spans, hardware, workers.

vLLM calls most of it. Beside the entry points only this package imports vLLM or OpenTelemetry. May
import `state`, `speed` and `contracts`.
"""
