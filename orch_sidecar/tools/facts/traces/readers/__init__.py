"""Readers of traces: spans from Jaeger's query service and from files of OTLP.

Pure. May import `facts.tables`, `facts.labels.documents` and `traces.span`.
"""
