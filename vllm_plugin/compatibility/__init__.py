"""Decides whether a release of vLLM has all that the plugin uses; `vllm_names` is the list of it.

Pure. Imports nothing of the plugin.
"""
