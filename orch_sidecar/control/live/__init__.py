"""The live document: what this sidecar shows to people, as a stream of events (SSE).

`GET /v1/live` serves it to the page (`/ui`) and to `orch top`. One producer builds it for all
readers, a few times per second, and only while there is a reader:

    event: snapshot    the whole document: the first event, and again for a reader that fell behind
    event: update      the members that changed; of `requests` only those that ended since
    : nothing new      a comment, every 2 s without a change: the stream is alive

    {
      "at": 1795425300123,            # of the sidecar's clock; all `..at` are Unix milliseconds
      "operator": true,               # operators' listener: requests can be cancelled by their ids,
                                      #   pools drained; else ids are cut to 8 digits
      "trace_url": null,              # ORCH_TRACE_URL, with "{trace_id}" in it
      "sidecar": {"version": "0.1.0", "run": "1f0c…", "started_at": 1795425000000,
                  "state": "ready", "keys": false},       # run: of this start; keys: API keys used
      "pools": [POOL, ...],
      "batches": [BATCH, ...],        # that have not ended; absent where ORCH_BATCHES is unset
      "requests": [REQUEST, ...]      # the last 100 that ended, the newest at the end
    }
    BATCH = {"batch": "batch_18ec…", "key": null, "status": "in_progress", "total": 3000,
             "completed": 1200, "failed": 3,        # rows, of all sidecars of the database
             "rows_per_s": 41.5, "ends_at": …}      # of the last minute, and then; or null

    POOL = {
      "name": "cloud", "profile": "cloud", "measurement_type": "batched_online",
      "tier": false,                  # it is a sidecar itself
      "models": ["tiny"], "engine": "vllm 0.32.0", "gpu": "…", "weights": "…",
      "state": "ready", "since_at": 1795425010000,   # or absent; since when it is ready, or not
      "message": "", "advice": "",    # not ready: why; and what to do about it, or about an SLO
                                      #   per token that no batch keeps
      "drain": null,                  # {"ordered_by": "operator", "since_at": …}
      "slots": {"total": 8, "free": 1, "interactive": 4, "bulk": 1, "idle": 1, "foreign": 0,
                "closing": 1},
      "limits": {"interactive": 8, "bulk": 8, "idle": 8},  # sequences that keep the SLO per token
      "batches": [3, 4, 4],           # of the last 120 decode steps, the newest at the end
      "decode_steps": 4711,           # since the engine's start: how many of them are new
      "running": 6, "prefilling": 0,  # sequences in the engine, and those that still read prompts
      "curve": {"points": [[batch, ms, steps], ...],  # mean step time by batch, since its start
                "fit": {"t0_ms": 9.1, "c_ms": 1.2, "alpha": 0.8, "largest": 8, "good": true,
                        "traffic": 1.1}},             # or null
      "kv": {"usage": 0.31, "tokens": 262144, "preemptions": 0},      # usage: 0 to 1, or null
      "violations": 0,                # leases or sequences beyond the slots: never right
      "rates": {"tokens_per_s": 812.0, "prompt_tokens_per_s": 90.5, "busy": 0.97},     # or nulls
      "latency": {"interactive": {"answers": 52, "tokens": 3120,    # complete, of the last 60 s
                  "requests": 40,     # streams among them, of which the times are
                  "ttft_ms": [p50, p95], "ttft_slo_ms": 10000, "tpot_ms": [p50, p95],
                  "tpot_slo_ms": 200}, "bulk": {…}},  # pairs and slos are null without one
      "waits": null,                  # what the head of the queue waits for:
                                      #   {"reason": "slot", "text": "a slot: all 8 are in use"}
      "queued": {"interactive": 2, "bulk": 0, "idle": 0},
      "keys": [{"class": "interactive", "key": "chat", "queued": 2, "running": 1, "share": 0.5}],
      "queue": [QUEUED, ...],         # the first 50 of each class, in the order of their dispatch
      "admitted": [ADMITTED, ...]     # the first 100 that have slots, the oldest at the beginning
    }
    QUEUED = {"id": "…", "class": "interactive", "key": null, "cost": 1, "position": 0,
              "queued_at": …, "starts_at": …, "expires_at": …}   # starts_at: predicted, or null
    ADMITTED = {"id": "…", "class": "bulk", "key": null, "cost": 1, "admitted_at": …,
                "first_byte_at": null,
                "phase": "prompt"}       # or "generation"; null: unknown, as nothing tells
    REQUEST = {"number": 17, "id": "…", "pool": "cloud", "class": "interactive", "key": null,
               "model": "tiny", "route": "/v1/completions", "ended_at": …, "outcome": "ok",
               "status": 200,
               "text": "",             # of a refusal or a failure: its reason in words
               "wait_ms": 12.1, "first_byte_ms": 80.2, "total_ms": 912.0,     # since its arrival
               "prompt_tokens": 12, "tokens": 64,   # estimated: by the pieces of its stream, as
               "estimated": false,                  #   the engine did not report its usage
               "batch": 3.9,           # mean while it ran, by the engine's counts of each second:
                                       #   null at first, and the row comes again when it is known
               "coalesced": false, "trace_id": null}

Neither prompts nor answers nor API keys are in it: keys appear by their names in the key file. A
client with a key gets its own rows alone, of `keys`, `queue`, `admitted` and `requests`. A model is
named only if the pool serves it.

Pure: `document`, `latency`, `words`.
"""
