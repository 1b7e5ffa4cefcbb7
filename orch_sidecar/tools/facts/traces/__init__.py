"""Traces: the requests and scenarios in spans of sidecar and engine, and the rows they earn.

Pure. May import `facts.labels` and `facts.tables`; `spans` imports nothing else here.
"""
