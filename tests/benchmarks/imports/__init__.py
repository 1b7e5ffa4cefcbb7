"""`make bench-import`: imports real result files of other tools and compares them with the engine.

Also measures the accuracy of those tools. `--fixtures` writes the fixtures of the importers' tests.
"""
