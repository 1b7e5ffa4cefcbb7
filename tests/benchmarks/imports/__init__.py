"""`make bench-import`: other tools' files as they really write them, imported and held against
what the engine itself counted; and how exact those tools are.

Not part of the test run. What it writes with `--fixtures` are the fixtures of the importers' tests.
"""
