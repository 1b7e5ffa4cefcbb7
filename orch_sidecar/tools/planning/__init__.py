"""Predicts how many engines and slots a traffic needs: `orch plan`.

Pure: `engine_model`, `fleet`, `text`. May import `simulate` (engine and admission in virtual time),
`traces`, `tune` (the rules for slots), `facts` (figures and plots) and `bench` (which reads an
engine's state).
"""
