"""Stands in for `tests.utils` and `tests.conftest` of vLLM's source, beside its tests."""
