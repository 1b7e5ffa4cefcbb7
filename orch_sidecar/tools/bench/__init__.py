"""`orch bench`: measures an endpoint or a device, and judges whether the figures are valid.

`cli` builds a plan and runs it: it imports `runs`, `results`, `decode`, and `reports`, which writes
results and pages. `runs` imports `results`, and `load` stands below them. Of the rest only
`tools.facts`, `tools.drawing`, `tools.traces`, `tools.arguments`, `api`, `wire`, the plugin's
classes and its form of statements are imported.
"""
