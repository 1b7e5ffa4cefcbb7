"""Builds a sidecar from its parts, starts it, reloads its configuration and stops it.

`pipeline` is the path of a request. May import every package below.
"""
