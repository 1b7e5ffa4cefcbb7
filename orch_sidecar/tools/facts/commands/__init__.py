"""The commands of `orch facts`: their options, what they read and write, and what they print.

May import all of `facts`.
"""
