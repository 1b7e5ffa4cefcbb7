"""Predicts how many engines and slots a traffic needs: `orch plan`.

Pure: `fleet`. May import `admission` and `simulate` (both in virtual time),
`traces`, `tune` (the rules for slots), `facts` (figures and plots) and `bench` (which reads an
engine's state).
"""
