"""Decides which upstream serves a request, and keeps the state and the admission of each.

Pure: `affinity`, `candidates`, `parent_leases`, `routing`, `status`. May import `admission`, `api`,
`config`, `engine_state` and `wire`. `registry` places requests: `routing` chooses by what a request
requires, the prefixes of prompts (`affinity`) and the predicted end; of many pools `shortlist` and
`candidates` name those to compare.
"""
