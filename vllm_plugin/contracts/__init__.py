"""What an engine and its sidecars share: formats, and decisions that both must make alike.

Formats: profiles, leases and events, signed statements and their envelopes. Decisions: which
sidecar gets slots (`slot_claims`, also of a sidecar that others have as their upstream), whom an
engine takes for its sidecars (`senders`), the time per token of real traffic (also in simulations),
and which of vLLM's arguments contradict a profile.

Pure. Imports nothing of the plugin, and is all of it that the sidecar may import.
"""
