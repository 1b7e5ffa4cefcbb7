"""Admission and relay in front of a vLLM engine.

Dependencies point down this list; nothing imports what stands above it:

    __main__      `python -m orch_sidecar`
    cli           the command line
    bench         measures endpoints and devices
    facts         labelled throughput figures: where they come from, and what they may say
    simulate      pure: admission in virtual time in front of a model of an engine
    local         everything on this machine: a small model, the engine, a check
    drain         has a sidecar drain, and waits for that
    app           the composition root of the sidecar, and its lifecycle
    admin         the operators' own listener
    new_key       `orch key`: a new API key for a client
    reloading     reads settings and profiles again, and has the changes hold
    serving       a request's way through the sidecar
    refused       a refusal as an answer to a client
    sharing       identical requests, one decode
    routing       which pool a request goes to, and which one next
    attempt       one request at one pool: slots, connection, answer, the end of the lease
    shared        a decode that requests share
    request       a request that is being served, and what is written of it
    control       what this sidecar answers itself, besides requests that it serves
    pages         what this sidecar says of itself
    readiness     whether requests should come to this sidecar
    exposition    metrics in the format that a scraper asks for
    metrics       Prometheus metrics: what happened
    readings      Prometheus metrics: the pools' numbers at a scrape
    engine_stats  Prometheus metrics: what engines say of themselves
    families      a family of samples, taken from all pools
    server        the client's side of a connection
    connections   connections of clients: how many, and which of them are abandoned
    publish       tells sidecars above of a pool, as an engine tells of itself
    inflight      pure: requests that are being served, for cancelling them
    watch         ends relays in which nothing moves
    decode        an engine's answer on its way to several clients
    fanout        one answer, several clients
    follower      one client of a shared answer
    relay         an engine's answer on its way to the client
    answering     what all answers on their way to a client have in common
    spreading     has who waits for one address of a pool go to another
    following     follows pools, and the addresses of headless ones
    pools         the engines behind this sidecar, and which of them takes a request
    pool          one engine and its admission
    upstream      connections to an engine
    engine        follows one engine: its state, and what of it matters to admission
    confirm       has every lease end: revokes those that closed unreported, or have no owner
    silence       ends the reading of a stream on which nothing of use comes
    telemetry     traces; the only module that knows OpenTelemetry
    tracing       what a request tells its trace; traces without an exporter
    gen_ai        OpenTelemetry's conventions for model servers: names and histograms
    distribution  how values of requests are distributed
    reading       the reading of a request's body
    key_file      a file of API keys on disk, which may be another one at any time
    file_reader   reads files in threads that nobody waits for
    settings      where the sidecar is told what to do
    capabilities  pure: the `/v1/capabilities` document
    reload        pure: what changes when settings are read again, and what cannot
    report        pure: a state document in, what admission and metrics must know out
    state_document pure: the bytes of a state event in, a document that can be relied on out
    engine_state  pure: the states of an engine, and why it takes no requests
    event_stream  pure: server-sent events out of the bytes of a stream
    readers       pure: which readers of the state stream are served
    upper         pure: sidecars above: their leases here, and what they are told
    admin_hosts   pure: which names operators may call their listener by
    guard         pure: who is served, as what, and how much of it at once
    admission     never more in the engine than it has slots; pure but for its gate
    routes        pure: the paths of this sidecar
    members       pure: which addresses a name has, as they come and go
    placement     pure: which pool takes a request
    errors        pure: what a refusal looks like on the wire
    exchange      what is known of one request and its answer
    tier          pure: what passes between this sidecar and who is below it
    tenant        pure: whose request it is
    heads         pure: heads on their way to the engine and to the client
    http1         pure: HTTP/1.1 framing as an engine sends it
    usage         pure: token counts and failures, from an answer as it passes
    response_id   pure: the response id within an answer
    openai        pure: a request body in, its cost in sequences out
    coalescing    pure: which requests one decode can answer
    outline       pure: a large JSON body in, a small one of the same shape out
    json_body     pure: a body in, the JSON object that it holds out
    keys          pure: API keys of clients: what a file of them says, and whose one is
    directives    pure: request headers in, how a request wants to be served out
    redacted      pure: leases and errors as they may be shown
    reasons       pure: the closed set of reasons for a refusal

Of `vllm_plugin` only `vllm_plugin.profile` may be imported, and vLLM never. The pure modules
know no clock, no event loop, no HTTP library, no vLLM and no OpenTelemetry.
"""
