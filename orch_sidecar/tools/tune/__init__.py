"""Decides slots and step size of an engine from one warm run on it: `orch tune`.

Pure: `decision`, `memory`, `steps`, `text`. May import `bench` (which measures), `engine_state`
(which reads what the engine reports) and `facts` (which plots).
"""
