"""Decides what an engine reports about its state, when, and to which of its subscribers.

`engine_state` is the whole state; the other modules are its parts: what does not change, requests
and their leases, the KV cache, whether the engine is ready or has stalled, and how fast it is:
`engine_speed`, from what the scheduler reports of each step.

Pure. Every event and the clock are arguments. May import `contracts`.
"""
