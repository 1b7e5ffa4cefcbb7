"""Answers the requests that are for the sidecar itself: state, health, metrics, drains, leases.

They never pass admission. Pure: `capabilities`, `ended_requests`, `live_document`. May import
`admission`, `api`, `auth`, `config`, `engine_state`, `observability`, `pools`, `wire`, and of
`proxy` requests and those in flight.
"""
