"""Decides what can be configured, from which sources, and what a reload changes.

Imports nothing of the sidecar; profiles come from `vllm_plugin.contracts.profile`.
"""
