"""Translates vLLM's objects into the plugin's own: statistics, spans, configuration, workers.

vLLM calls most of it. Beside the entry points only this package imports vLLM or OpenTelemetry. May
import `enforcement`, `state` and `contracts`.
"""
