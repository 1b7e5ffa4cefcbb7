"""Decides what is recorded of each request, and what is exported: metrics and traces.

Pure: `histogram`, `recent`, `request_metrics`. May import `api`, `admission`, `config`,
`engine_state` and `pools`; only `otlp` knows OpenTelemetry.
"""
