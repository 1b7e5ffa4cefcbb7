"""Tables of facts (`tps_model_gpu.csv`): their rows, the rules for them, and the files.

Pure but for `files`. Imports no other package of `facts`.
"""
