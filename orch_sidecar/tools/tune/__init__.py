"""Decides slots and step size of an engine from one warm run on it: `orch tune`.

Pure: `decision`, `engine_model`. May import `bench` (which
measures), `engine_state` (which reads what the engine reports) and `simulate` (which runs an engine
of other slots).
"""
