"""Decides whether an engine may run: by its arguments, and by the release of vLLM.

`enforce` is the whole decision on arguments: those of the profile, or a contradiction. `sharing`
and `telemetry` are parts of it. `hooks` checks that a release has all that the plugin uses, by the
list `vllm_names`.

Pure. May import `contracts`.
"""
