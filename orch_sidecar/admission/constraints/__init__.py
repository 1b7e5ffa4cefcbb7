"""Decides whether a request can be dispatched now: one module per constraint. Pure.

`rules` combines them; `reclaim`, which makes room for requests that they block, is none itself.
"""
