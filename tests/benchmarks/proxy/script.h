/* What the scripted engine says: texts in vLLM's form. Knows no socket and no request. */
#ifndef BENCH_SCRIPT_H
#define BENCH_SCRIPT_H

#include "wire.h"

enum { STAMP = 18 };   /* digits of a token's timestamp: nanoseconds of 31 years of uptime */
enum { TOKENS_PER_SLOT = 8192 };   /* of the KV cache: it is not what limits */

typedef struct { char text[512]; size_t len, stamp_at; } token;

static token chat_token, text_token;

static const char STREAM_HEAD[] = "HTTP/1.1 200 OK\r\nserver: uvicorn\r\n"
    "content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";
static const char STREAM_END[] = "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n";
static const char STATS[] = "{\"trace_posts\":%llu,\"trace_bytes\":%llu,\"trace_spans\":%llu,"
    "\"trace_unread\":%llu,\"state_events\":%llu}";
static const char CHANGE[] = "event: change\ndata: {\"slots_free\":%d,\"running\":%d,\"prefilling\":%d,"
    "\"leased\":%d,\"kv_cache_usage\":0.%03d,\"observed_at\":\"2026-01-01T00:00:00.000Z\"}\n\n";
static const char BUSY_BEAT[] = "event: heartbeat\ndata: {\"requests_total\":%u,\"steps_total\":%u,"
    "\"busy_seconds_total\":%u.25,\"generated_tokens_total\":%u,\"prefill\":{\"tokens\":%u,\"seconds\":1.5},"
    "\"prefix_cache\":{\"queries_total\":%u,\"hits_total\":7},\"claim\":null,\"steps_by_batch\":{"
    "\"1\":[%u,0.513],\"2\":[901,7.23],\"3\":[650,5.25],\"4\":[522,4.281],\"6\":[410,3.433],\"8\":[388,3.31],"
    "\"12\":[341,3.04],\"16\":[320,2.98],\"20\":[301,2.93],\"24\":[280,2.85],\"32\":[251,2.74],\"40\":[221,2.6],"
    "\"48\":[%u,2.41],\"56\":[170,2.3],\"60\":[120,1.7],\"64\":[%u,1.4]},"
    "\"observed_at\":\"2026-01-01T00:00:00.000Z\"}\n\n";
/* The speed of an engine that is measured beside others: without it nothing is predicted. */
static const char SPEED[] = "\"batch_seen\":%d,\"prefill_tokens_per_s\":5000000.0,\"step_time\":{\"t0_ms\":0.5,"
    "\"c_ms\":0.01,\"alpha\":0.9,\"largest\":%d,\"samples\":500,\"batches\":16,\"error\":0.01,"
    "\"quality\":\"good\",\"tokens\":1.0,\"traffic\":1.02,\"prompt_share\":0.1},";
static const char BEAT[] = "event: heartbeat\ndata: {\"observed_at\":\"2026-01-01T00:00:00.000Z\"}\n\n";
static const char ANSWER[] =
    "{\"id\":\"chatcmpl-bench\",\"object\":\"chat.completion\",\"created\":1767225600,\"model\":\"tiny\","
    "\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"The quick brown fox.\"},"
    "\"text\":\"\",\"logprobs\":null,\"finish_reason\":\"stop\"}],"
    "\"usage\":{\"prompt_tokens\":9,\"total_tokens\":14,\"completion_tokens\":5}}";

static const char *state_json(int slots, bool speed) {
    static char s[1600], measured[400];
    snprintf(measured, sizeof measured, speed ? SPEED : "", slots, slots);
    snprintf(s, sizeof s,
        "{%s\"engine\":\"vllm\",\"engine_version\":\"0.32.0\",\"pool\":\"bench\",\"models\":[\"tiny\"],"
        "\"ctx_max\":32768,\"profile\":\"cloud\",\"measurement_type\":\"batched_online\","
        "\"batching\":true,\"slots_total\":%d,\"slots_free\":%d,\"running\":0,\"waiting\":0,"
        "\"peak\":0,\"foreign\":0,\"leased\":0,\"kv_tokens_total\":%d,\"kv_cache_usage\":0.0,"
        "\"kv_blocks_total\":%d,\"kv_groups\":[{\"count\":1,\"block_tokens\":16}],"
        "\"preemptions_total\":0,\"steps_by_batch\":{},\"state\":\"ready\",\"epoch\":\"bench-1\","
        "\"observed_at\":\"2026-01-01T00:00:00.000Z\",\"supported_workloads\":[\"completion\",\"chat\"],"
        "\"rate_limits\":{},\"features\":{},\"leases\":[]}",
        measured, slots, slots, slots * TOKENS_PER_SLOT, slots * TOKENS_PER_SLOT / 16);
    return s;
}

/* The token's HTTP chunk with room for the timestamp: its width is fixed, so is the chunk's. */
static void make_token(token *t, const char *id, const char *object, const char *before, const char *after) {
    char body[400];
    int n = snprintf(body, sizeof body,
        "data: {\"id\":\"%s\",\"object\":\"%s\",\"created\":1767225600,\"model\":\"tiny\",\"choices\":"
        "[{\"index\":0,%s\"%0*d\"%s,\"logprobs\":null,\"finish_reason\":null}]}\n\n",
        id, object, before, STAMP, 0, after);
    t->len = (size_t)snprintf(t->text, sizeof t->text, "%x\r\n%s\r\n", n, body);
    char zeros[STAMP + 2];
    snprintf(zeros, sizeof zeros, "\"%0*d", STAMP, 0);
    t->stamp_at = (size_t)(strstr(t->text, zeros) - t->text) + 1;
}

/* The answer to a GET that an engine always answers the same, or NULL. */
static const char *get_answer(const char *path, int slots) {
    static char buf[1200];
    if (!strcmp(path, "/v1/capabilities")) {
        snprintf(buf, sizeof buf, "{\"api_version\":\"1.0.0\",\"engines\":[%s]}", state_json(slots, false));
        return buf;
    }
    if (!strcmp(path, "/health") || !strcmp(path, "/ping")) return "";
    if (!strcmp(path, "/version")) return "{\"version\":\"0.32.0\"}";
    if (!strcmp(path, "/metrics")) return "vllm:num_requests_running 0\n";
    if (!strcmp(path, "/v1/models"))
        return "{\"object\":\"list\",\"data\":[{\"id\":\"tiny\",\"object\":\"model\",\"created\":1767225600,"
            "\"owned_by\":\"vllm\",\"root\":\"tiny\",\"parent\":null,\"max_model_len\":32768,\"permission\":[]}]}";
    if (strstr(path, "model_info") || strstr(path, "server_info"))
        return "{\"model_path\":\"tiny\",\"served_model_name\":\"tiny\",\"tokenizer_path\":\"\","
            "\"is_generation\":true,\"tp_size\":1,\"dp_size\":1,\"version\":\"0.32.0\"}";
    return NULL;
}

#endif
