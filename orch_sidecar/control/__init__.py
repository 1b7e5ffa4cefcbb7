"""Answers the requests that are for the sidecar itself: state, health, metrics, drain, leases.

They never pass admission. May import `auth`, `observability`, `pools` and what these import, and
of `proxy` only the table of requests in flight.
"""
