"""Decides what requests and answers mean: endpoints, headers, bodies, options, refusals and usage.

Pure. Imports nothing of the sidecar; classes of service come from `vllm_plugin.contracts.profile`.
"""
