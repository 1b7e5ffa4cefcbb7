"""Decides which requests share a generation, and gives each of them its own response.

May import `api`, `observability`, `pools`, `proxy` and `wire`.
"""
