/* A scripted engine that speaks vLLM's wire format: one thread, epoll, HTTP/1.1 keep-alive.
 *
 * POST /v1/chat/completions, /v1/completions: JSON, or with "stream": true an SSE stream of
 *   "max_tokens" tokens, one HTTP chunk each, "delay_ms" apart; each token's text is the
 *   CLOCK_MONOTONIC nanosecond at which it was written. The first leaves with the head.
 * GET /v1/capabilities, /v1/capabilities/stream: an idle engine with SLOTS slots.
 * POST /v1/traces: swallows OTLP/HTTP; GET /stats says how many bytes and spans came.
 *
 * With delay 0 it writes to the streams in turn, as long as the sockets take it, one token per
 * send as vLLM does, or "per_send" of them. Both may stand in the prompt ("delay_ms=20 per_send=4"),
 * for routers that drop fields they do not know: it looks for strings, and parses no JSON.
 *
 * usage: upstream PORT [SLOTS [CHANGES_MS]]
 *
 * With CHANGES_MS it is a busy engine at each address of the loopback network: it reports a speed,
 * and a change of its state every so many milliseconds, or more seldom if its reader asks for it. */
#define _GNU_SOURCE
#include "request.h"
#include "schedule.h"
#include "script.h"
#include "traces.h"

enum { MAX_TOKENS_PER_SEND = 128 };

typedef struct {
    due due;                             /* first: an entry of paced is its connection */
    int fd;
    enum { NOWHERE, EAGER, PACED } listed;
    char *in, *out;
    size_t in_len, in_cap, out_len, out_off, out_cap;
    enum { READING, TOKENS, BEATS } doing;
    bool chat, last;                     /* last: close after this answer */
    uint32_t tokens_left, per_send;      /* of a state stream: its events */
    uint64_t delay_ns, beat_at;
} conn;

static conn *conns[MAX_FD], *eager[MAX_FD];
static due *paced_v[MAX_FD];
static schedule paced = {paced_v, 0};
static int eagers;
static int ep, slots = 4096;
static double changes_ms;
static unsigned long long trace_posts, trace_bytes, trace_spans, trace_unread, state_events;

static void leave(conn *c) {
    if (c->listed == PACED) schedule_remove(&paced, &c->due);
    if (c->listed == EAGER) {
        conn *moved = eager[--eagers];
        eager[c->due.pos] = moved;
        moved->due.pos = c->due.pos;
    }
    c->listed = NOWHERE;
}

static void join_eager(conn *c) {
    leave(c);
    c->due.pos = eagers;
    eager[eagers++] = c;
    c->listed = EAGER;
}

static void join_paced(conn *c, uint64_t due_ns) {
    leave(c);
    c->due.due_ns = due_ns;
    schedule_add(&paced, &c->due);
    c->listed = PACED;
}

static bool drop(conn *c) {
    leave(c);
    conns[c->fd] = NULL;
    close(c->fd);
    free(c->in);
    free(c->out);
    free(c);
    return false;
}

/* Sends, or keeps what the socket does not take and waits for EPOLLOUT. False: c is gone. */
static bool put(conn *c, const char *p, size_t n) {
    if (c->out_len == c->out_off) {
        ssize_t w = send(c->fd, p, n, MSG_NOSIGNAL);
        if (w < 0 && errno != EAGAIN) return drop(c);
        if (w == (ssize_t)n) return c->last && c->doing == READING ? drop(c) : true;
        if (w > 0) p += w, n -= (size_t)w;
        c->out_len = c->out_off = 0;
        epoll_change(ep, c->fd, EPOLLIN | EPOLLOUT);
    }
    c->out = grown(c->out, c->out_len + n, &c->out_cap);
    memcpy(c->out + c->out_len, p, n);
    c->out_len += n;
    if (c->listed == EAGER) leave(c);
    return true;
}

static bool emit(conn *c, uint32_t n, bool with_head, uint64_t now) {
    static char buf[sizeof STREAM_HEAD + MAX_TOKENS_PER_SEND * sizeof chat_token.text + 64];
    const token *t = c->chat ? &chat_token : &text_token;
    size_t len = 0;
    char stamp[STAMP];
    for (int i = STAMP - 1; i >= 0; i--, now /= 10) stamp[i] = (char)('0' + now % 10);
    if (with_head) memcpy(buf, STREAM_HEAD, len = sizeof STREAM_HEAD - 1);
    if (n > c->tokens_left) n = c->tokens_left;
    for (uint32_t i = 0; i < n; i++, len += t->len) {
        memcpy(buf + len, t->text, t->len);
        memcpy(buf + len + t->stamp_at, stamp, STAMP);
    }
    c->tokens_left -= n;
    if (!c->tokens_left) {
        memcpy(buf + len, STREAM_END, sizeof STREAM_END - 1);
        len += sizeof STREAM_END - 1;
        leave(c);
        c->doing = READING;
    }
    return put(c, buf, len);
}

static bool answer(conn *c, const char *status, const char *type, const char *body) {
    char buf[4096];
    int n = snprintf(buf, sizeof buf, "HTTP/1.1 %s\r\nserver: uvicorn\r\ncontent-type: %s\r\n"
        "content-length: %zu\r\n%s\r\n%s", status, type, strlen(body),
        c->last ? "connection: close\r\n" : "", body);
    return put(c, buf, (size_t)n);
}

static bool completion(conn *c, bool chat, const char *body, size_t len) {
    if (!field(body, len, "\"stream\"", 0)) return answer(c, "200 OK", "application/json", ANSWER);
    c->chat = chat;
    c->tokens_left = (uint32_t)field(body, len, "\"max_tokens\"", 0);
    if (!c->tokens_left) c->tokens_left = (uint32_t)field(body, len, "\"max_completion_tokens\"", 16);
    c->delay_ns = (uint64_t)(field(body, len, "delay_ms", 0) * MS_NS);
    c->per_send = (uint32_t)field(body, len, "per_send", 1);
    if (c->per_send < 1 || c->per_send > MAX_TOKENS_PER_SEND) c->per_send = 1;
    c->doing = TOKENS;
    uint64_t now = now_ns();
    if (c->delay_ns) join_paced(c, now + c->delay_ns);
    else join_eager(c);
    return emit(c, 1, true, now);
}

static bool watch_state(conn *c) {
    char event[1700], buf[2048];
    int n = snprintf(event, sizeof event, "event: state\ndata: %s\n\n", state_json(slots, changes_ms));
    int m = snprintf(buf, sizeof buf, "%s%x\r\n%s\r\n", STREAM_HEAD, n, event);
    double asked_ms = field(c->in, c->in_len, "changes_every_ms", 0);
    c->doing = BEATS;
    c->delay_ns = (uint64_t)((asked_ms > changes_ms ? asked_ms : changes_ms) * MS_NS);
    c->beat_at = now_ns() + SECOND_NS;
    join_paced(c, changes_ms ? now_ns() + c->delay_ns : c->beat_at);
    state_events++;
    return put(c, buf, (size_t)m);
}

static bool route(conn *c, const char *method, const char *path, const char *body, size_t len) {
    const char *json = "application/json";
    char buf[2048];
    if (!strcmp(method, "POST")) {
        if (!strcmp(path, "/v1/chat/completions")) return completion(c, true, body, len);
        if (!strcmp(path, "/v1/completions")) return completion(c, false, body, len);
        if (!strcmp(path, "/v1/traces")) {
            trace_posts++;
            trace_bytes += len;
            long spans = count_spans(body, len);
            *(spans < 0 ? &trace_unread : &trace_spans) += spans < 0 ? 1 : (unsigned long long)spans;
            return answer(c, "200 OK", "application/x-protobuf", "");
        }
    } else if (!strcmp(method, "GET")) {
        if (!strcmp(path, "/v1/capabilities/stream")) return watch_state(c);
        const char *body = get_answer(path, slots);
        if (body) return answer(c, "200 OK", json, body);
        snprintf(buf, sizeof buf, STATS, trace_posts, trace_bytes, trace_spans, trace_unread, state_events);
        if (!strcmp(path, "/stats")) return answer(c, "200 OK", json, buf);
    } else if (!strcmp(method, "DELETE") && !strncmp(path, "/v1/capabilities/leases/", 24)) {
        return answer(c, "200 OK", json, "{\"ended\":true}");
    }
    return answer(c, "404 Not Found", json, "{\"error\":{\"message\":\"not found\",\"code\":404}}");
}

/* Answers a whole request of the input. False: there is none, or c is gone. */
static bool serve_one(conn *c) {
    char *head_end = memmem(c->in, c->in_len, "\r\n\r\n", 4);
    if (!head_end) return c->in_len > 65536 ? drop(c) : false;
    size_t head = (size_t)(head_end - c->in) + 4, vlen, body_len = 0, used;
    char *body = c->in + head;
    if (header_is(c->in, head, "transfer-encoding", "chunked")) {
        if (c->in_len - head < 5 || memcmp(c->in + c->in_len - 5, "0\r\n\r\n", 5)) return false;
        ssize_t n = dechunk(body, c->in_len - head, &body_len);
        if (n <= 0) return drop(c);
        used = head + (size_t)n;
    } else {
        const char *v = header(c->in, head, "content-length", &vlen);
        long long n = v ? decimal(v, vlen) : 0;
        if (n < 0 || n > MAX_BODY) return drop(c);
        body_len = (size_t)n;
        used = head + body_len;
        if (c->in_len < used) return false;
    }
    char method[8], path[512], version[4];
    *head_end = 0;
    if (sscanf(c->in, "%7s %511[^ ?]%*[^ ] HTTP/1.%1s", method, path, version) != 3 &&
        sscanf(c->in, "%7s %511[^ ?] HTTP/1.%1s", method, path, version) != 3) return drop(c);
    *head_end = '\r';
    c->last = version[0] == '0' || header_is(c->in, head, "connection", "close");
    int fd = c->fd;
    if (!route(c, method, path, body, body_len) || conns[fd] != c) return false;
    memmove(c->in, c->in + used, c->in_len - used);
    c->in_len -= used;
    return true;
}

static void readable(conn *c) {
    c->in = grown(c->in, c->in_len + 16384, &c->in_cap);
    ssize_t n = recv(c->fd, c->in + c->in_len, c->in_cap - c->in_len, 0);
    if (n == 0 || (n < 0 && errno != EAGAIN)) {
        drop(c);
        return;
    }
    if (n > 0) c->in_len += (size_t)n;
    while (c->doing == READING && c->in_len && serve_one(c)) {}
}

static void writable(conn *c) {
    ssize_t w = send(c->fd, c->out + c->out_off, c->out_len - c->out_off, MSG_NOSIGNAL);
    if (w < 0 && errno != EAGAIN) {
        drop(c);
        return;
    }
    if (w > 0) c->out_off += (size_t)w;
    if (c->out_off < c->out_len) return;
    c->out_off = c->out_len = 0;
    epoll_change(ep, c->fd, EPOLLIN);
    if (c->doing == TOKENS && !c->delay_ns) join_eager(c);
    if (c->doing == READING && c->last) drop(c);
}

static bool beat(conn *c, uint64_t now) {
    char event[1200], buf[1300];
    unsigned t = ++c->tokens_left;
    bool full = now >= c->beat_at;
    if (full) c->beat_at += SECOND_NS;
    if (!changes_ms) strcpy(event, BEAT);
    else if (full) snprintf(event, sizeof event, BUSY_BEAT, t, t * 9, t, t * 70, t * 300, t, t, t, t);
    else snprintf(event, sizeof event, CHANGE, slots - (int)(t % 3), t % 3, t % 2, t % 3, t * 7 % 1000);
    int n = snprintf(buf, sizeof buf, "%zx\r\n%s\r\n", strlen(event), event);
    join_paced(c, changes_ms ? now + c->delay_ns : c->beat_at);
    state_events++;
    return put(c, buf, (size_t)n);
}

/* The next due time, or 0. */
static uint64_t write_due(uint64_t now) {
    while (paced.n && paced.v[0]->due_ns <= now) {
        conn *c = (conn *)paced.v[0];
        if (c->doing == BEATS) {
            beat(c, now);
        } else {
            join_paced(c, c->due.due_ns + c->delay_ns); /* a schedule: lateness does not add up */
            emit(c, 1, false, now_ns());
        }
    }
    return paced.n ? paced.v[0]->due_ns : 0;
}

int main(int argc, char **argv) {
    if (argc < 2) die("usage: upstream PORT [SLOTS [CHANGES_MS]]");
    if (argc > 2) slots = atoi(argv[2]);
    if (argc > 3) changes_ms = atof(argv[3]);
    make_token(&chat_token, "chatcmpl-bench", "chat.completion.chunk", "\"delta\":{\"content\":", "}");
    make_token(&text_token, "cmpl-bench", "text_completion", "\"text\":", "");

    int door = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), one = 1;
    struct sockaddr_in a = loopback(atoi(argv[1]));
    if (changes_ms) a.sin_addr.s_addr = htonl(INADDR_ANY);
    setsockopt(door, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(door, (struct sockaddr *)&a, sizeof a) || listen(door, 4096)) die("listen");
    int timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    ep = epoll_create1(0);
    epoll_add(ep, door, EPOLLIN);
    epoll_add(ep, timer, EPOLLIN);

    uint64_t armed = 0, ticks;
    struct epoll_event events[EVENTS];
    for (;;) {
        int n = epoll_wait(ep, events, EVENTS, eagers ? 0 : -1);
        for (int i = 0; i < n; i++) {
            int fd = events[i].data.fd;
            if (fd == timer) {
                if (read(timer, &ticks, sizeof ticks) > 0) armed = 0;
            } else if (fd == door) {
                int s = accept4(door, NULL, NULL, SOCK_NONBLOCK);
                if (s < 0) continue;
                if (s >= MAX_FD) {
                    close(s);
                    continue;
                }
                nodelay(s);
                conn *c = calloc(1, sizeof *c);
                if (!c) die("calloc");
                c->fd = s;
                conns[s] = c;
                epoll_add(ep, s, EPOLLIN);
            } else {
                if (conns[fd] && events[i].events & EPOLLOUT) writable(conns[fd]);
                if (conns[fd] && events[i].events & ~(uint32_t)EPOLLOUT) readable(conns[fd]);
            }
        }
        if (eagers) {
            uint64_t now = now_ns();
            /* backwards, because finishing one moves the last into its place */
            for (int i = eagers - 1; i >= 0; i--) emit(eager[i], eager[i]->per_send, false, now);
        }
        if (paced.n) {
            uint64_t next = write_due(now_ns());
            if (next != armed) wake_at(timer, armed = next);
        }
    }
}
