"""Decides how finished requests become OTLP spans, and how these reach the collector.

Pure: `attributes`, `encoder`, `protobuf`. May import `api`, the threads of `config`,
and of `observability` the interface `tracing`, the records and their vocabulary, not the metrics.
Runs on the event loop, and no request waits for any of it. The SDK of OpenTelemetry is imported
only if an exporter is configured.
"""
