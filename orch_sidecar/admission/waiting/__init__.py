"""Describes the wait of queued requests: their places and starts, and what they wait for. Pure."""
