"""Decides sizes from measurements: the slots and the step size of an engine (`orch tune`), and how
many engines and slots a traffic needs (`orch plan`).

Pure: `decision`, `engine_model`, `fleet`. May import `admission`, `api`, `bench` (which measures
and reads an engine's state), `engine_state` (which reads what it reports), `facts` (figures and
plots), `simulate` (which runs engines in virtual time) and `traces`.
"""
