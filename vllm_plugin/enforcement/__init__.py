"""Decides with which arguments an engine may run: those of its profile, or a contradiction.

`enforce` is the whole decision. The others are parts of it: KV connectors, data parallelism, and
where traces go.

Pure. May import `contracts`.
"""
