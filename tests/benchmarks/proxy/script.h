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
    "\"trace_unread\":%llu}";
static const char BEAT[] = "event: heartbeat\ndata: {\"observed_at\":\"2026-01-01T00:00:00.000Z\"}\n\n";
static const char ANSWER[] =
    "{\"id\":\"chatcmpl-bench\",\"object\":\"chat.completion\",\"created\":1767225600,\"model\":\"tiny\","
    "\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"The quick brown fox.\"},"
    "\"text\":\"\",\"logprobs\":null,\"finish_reason\":\"stop\"}],"
    "\"usage\":{\"prompt_tokens\":9,\"total_tokens\":14,\"completion_tokens\":5}}";

static const char *state_json(int slots) {
    static char s[1024];
    snprintf(s, sizeof s,
        "{\"engine\":\"vllm\",\"engine_version\":\"0.32.0\",\"pool\":\"bench\",\"models\":[\"tiny\"],"
        "\"ctx_max\":32768,\"profile\":\"cloud\",\"measurement_type\":\"batched_online\","
        "\"batching\":true,\"slots_total\":%d,\"slots_free\":%d,\"running\":0,\"waiting\":0,"
        "\"peak\":0,\"foreign\":0,\"leased\":0,\"kv_tokens_total\":%d,\"kv_cache_usage\":0.0,"
        "\"kv_blocks_total\":%d,\"kv_groups\":[{\"count\":1,\"block_tokens\":16}],"
        "\"preemptions_total\":0,\"steps_by_batch\":{},\"state\":\"ready\",\"epoch\":\"bench-1\","
        "\"observed_at\":\"2026-01-01T00:00:00.000Z\",\"supported_workloads\":[\"completion\"],"
        "\"rate_limits\":{},\"features\":{},\"leases\":[]}",
        slots, slots, slots * TOKENS_PER_SLOT, slots * TOKENS_PER_SLOT / 16);
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
        snprintf(buf, sizeof buf, "{\"api_version\":\"1.0.0\",\"engines\":[%s]}", state_json(slots));
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
