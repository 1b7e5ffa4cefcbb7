"""Decides how finished requests become OTLP spans, and how these reach the collector.

Pure: `responses`. May import `observability.tracing` and `observability.record`, not the metrics.
Runs on the event loop, and no request waits for any of it.
"""
