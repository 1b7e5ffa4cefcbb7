"""Answers the requests that are for the sidecar itself: state, health, metrics, drains, leases.

They never pass admission. Pure: `capabilities`, `ended_requests`, `live_document`. May import
`auth`, `observability`, `pools` and what these import, and of `proxy` requests and those in flight.
"""
