"""`orch bench`: measures an endpoint or a device, and judges whether the figures are valid.

`cli` builds a plan, runs it and writes the result: it imports `plan`, `runs`, `results` and
`decode`; `runs` and `plan` import `results`, and `load` stands below them. `reports` writes
the pages that `report` makes of results, with `drawing`. Of the rest only `tools.facts`,
`tools.traces`, `tools.arguments`, `api`, `wire`, the plugin's classes and its form of statements
are imported.
"""
