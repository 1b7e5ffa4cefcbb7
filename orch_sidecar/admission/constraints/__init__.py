"""Decides whether a request can be dispatched now: one module per constraint. Pure.

`rules` combines them.
"""
