"""Traces: the requests and scenarios in spans of sidecar and engine, and the rows they earn.

Pure but for `jaeger`. May import `facts.evidence` and `facts.tables`.
"""
