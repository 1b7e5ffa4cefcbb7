"""Decides which requests get slots of an engine, in which order, and which are refused.

Pure but for `gate`: time is an argument (seconds of any monotonic clock), decisions are return
values. A lease is granted only while leased + foreign + cost stay within the slots that the engine
reported; it ends with the response, or when the engine confirms its end. Imports `api.refusal` and
`vllm_plugin.contracts` alone.
"""
