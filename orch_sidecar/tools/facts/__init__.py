"""Facts: labelled throughput figures, where they come from, and what may stand beside what.

Dependencies point down this list; nothing imports what stands above it:

    cli           `orch facts`: its commands
    tables_cli    `orch facts check` and `merge`
    compare_cli   `orch facts compare`
    traces_cli    `orch facts from-jaeger` and `from-otlp`
    imports_cli   `orch facts from-vllm-bench` and `from-guidellm`
    panels  a comparison as panels of a picture
    terminal      what is printed, whatever the encoding
    plot          series of figures as a picture; the only module that knows matplotlib
    report        pure: a comparison as text, and as a document
    compare       pure: which facts may stand beside which, and what they say there
    traced        pure: a scenario of traces as a row, or what is in the way of one
    validity      pure: what speaks against making a fact of a scenario
    stays         pure: which sequences were in the engines of a scenario, and when
    scenarios     pure: which requests were measured together
    requests      pure: requests, from the spans of sidecar and engine
    jaeger        spans from a Jaeger query service; the only module that speaks to a server
    paging        pure: all traces of an interval, from a server that gives so many at most
    jaeger_json   pure: traces as Jaeger tells them to its own UI
    otlp_file     pure: files of the OpenTelemetry collector
    otlp          pure: OTLP as JSON
    span          pure: one span, whichever way it was told
    merge         pure: several tables as one
    migrate       pure: what an older file says, in today's form
    files         tables on disk; the only module that writes files
    check         pure: what is wrong with a table, and where
    rules         pure: what each field may say, and which must agree
    table         pure: a table as text; records keep their place and their bytes
    imported      pure: another tool's run and what proves its label, as a row
    vllm_bench    pure: files of `vllm bench serve`
    guidellm      pure: reports of GuideLLM
    measured      pure: what another tool measured, in the terms of `served`
    verdict       pure: whether a label was earned
    snapshot      pure: an engine at one end of a measurement
    json_documents  pure: JSON that somebody else has written
    served     pure: requests as they were measured in, one figure out
    row        pure: one fact, as a row of `tps_model_gpu.csv`

A label is earned: nothing here makes a row of what was not measured as the label says. Of the
rest of `orch_sidecar` nothing is imported.
"""
