"""Decides which upstream serves a request, and keeps the state of each upstream.

May import `admission`, `api`, `config`, `engine_state` and `wire`, and nothing above it.
"""
