"""Decides what an engine reports about its state, when, and to which of its subscribers.

`engine_state` is the whole state; the other modules are its parts: what does not change, requests
and their leases, the KV cache, whether the engine is ready, and whether it has stalled.

Pure. Every event and the clock are arguments. May import `speed` and `contracts`.
"""
