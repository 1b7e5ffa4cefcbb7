/* Load client: closed loop over keep-alive connections, one thread, epoll. Prints one JSON line.
 *
 * usage: client PORT CONNECTIONS SECONDS START TOKENS DELAY_MS PER_SEND PROMPT_BYTES
 *   TOKENS 0: not streamed, else streams of that many tokens, DELAY_MS apart and without a delay
 *             PER_SEND at once (both asked of the engine in the prompt)
 *   START loop:    all at once, each connection asks again as soon as its answer ended
 *         burst:   waves: all at once, and again when the last of them ended
 *         stagger: starts spread evenly over a stream's duration, then as loop
 *
 * Each connection makes one short request first, which is not counted. At the deadline nothing new
 * starts, what runs may end; rates count what came before the deadline, everything else all of it.
 * Any answer that is not 200, whole and well framed is an error, and so is one that never came. */
#define _GNU_SOURCE
#include "answer.h"
#include <sys/resource.h>

enum { MAX_CONNS = 4096, READ_BYTES = 65536 };
static const uint64_t RETRY_NS = 10 * MS_NS;          /* after an error, so that none is a storm */
static const uint64_t DRAIN_NS = 10ull * SECOND_NS;   /* beyond a stream's own duration */

typedef struct { float *v; size_t n, cap; } samples;  /* milliseconds */
typedef struct {
    int fd;
    enum { OFF, WAITING, ASKED, CONNECTING } doing;
    bool warm;
    uint64_t start_at, asked_at, last_at, came_at;
    size_t sent;                                      /* bytes of the request */
    reader r;
} conn;

static conn conns[MAX_CONNS];
static samples ttft, itl, oneway;
static int ep, timer, port, n_conns, waiting, per_send, prompt_bytes;
static uint32_t tokens;
static double delay_ms;
static bool burst, warming = true;
static uint64_t deadline, began;
static char *request[2];
static size_t request_len[2];

enum { E_STATUS, E_FRAMING, E_TRUNCATED, E_RESET, E_CONNECT, E_TIMEOUT, E_KINDS };
static const char *const E_NAMES[] = {"status", "framing", "truncated", "reset", "connect", "timeout"};
static unsigned long long errors[E_KINDS], answers, answers_in_time, events, events_in_time;
static int odd_status;

static void note(samples *s, uint64_t ns) {
    s->v = grown(s->v, (s->n + 1) * sizeof *s->v, &s->cap);
    s->v[s->n++] = (float)((double)ns / MS_NS);
}

static void make_requests(void) {
    size_t most = (size_t)prompt_bytes + 1024;
    char *body = malloc(most), *text = calloc(1, (size_t)prompt_bytes + 1);
    if (!body || !text) die("malloc");
    for (int i = 0; i < prompt_bytes; i++) text[i] = "many words of a long prompt, and "[i % 33];
    for (int warm = 0; warm < 2; warm++) {
        uint32_t n = warm && tokens ? 2 : tokens;
        int len = snprintf(body, most,
            "{\"model\":\"tiny\",\"messages\":[{\"role\":\"user\",\"content\":\"Say something about foxes,"
            " rivers and the moon, in a few words. delay_ms=%g per_send=%d%s\"}],\"temperature\":0.7,\"max_tokens\":%u,"
            "\"stream\":%s}", warm ? 0 : delay_ms, per_send, text, n ? n : 16, tokens ? "true" : "false");
        request[warm] = malloc(most + 512);
        if (!request[warm]) die("malloc");
        request_len[warm] = (size_t)snprintf(request[warm], most + 512,
            "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nAccept: application/json\r\n"
            "Content-Type: application/json\r\nUser-Agent: bench\r\nAuthorization: Bearer none\r\n"
            "Content-Length: %d\r\n\r\n%s", port, len, body);
    }
}

static void wait_until(conn *c, uint64_t at) {
    if (c->doing != WAITING) waiting++;
    c->doing = WAITING;
    c->start_at = at;
}

static void failed(conn *c, int kind) {
    errors[kind]++;
    if (c->fd >= 0) close(c->fd);
    c->fd = -1;
    if (warming) c->warm = true;
    if (burst || warming) c->doing = OFF;
    else wait_until(c, now_ns() + RETRY_NS);
}

/* Sends the rest of a request, as far as the socket takes it. */
static void send_rest(conn *c) {
    bool warm = !c->warm, began = c->sent > 0;
    ssize_t n = send(c->fd, request[warm] + c->sent, request_len[warm] - c->sent, MSG_NOSIGNAL);
    if (n < 0 && errno != EAGAIN) {
        failed(c, E_RESET);
        return;
    }
    c->sent += n > 0 ? (size_t)n : 0;
    bool whole = c->sent == request_len[warm];
    if (whole && !began) return;
    struct epoll_event e = {.events = EPOLLIN | (whole ? 0 : EPOLLOUT), .data.u32 = (uint32_t)(c - conns)};
    if (epoll_ctl(ep, EPOLL_CTL_MOD, c->fd, &e)) die("epoll_ctl");
}

static void ask(conn *c) {
    reader_reset(&c->r, tokens > 0);
    c->last_at = 0;
    c->doing = ASKED;
    c->asked_at = now_ns();
    c->sent = 0;
    send_rest(c);
}

static void start(conn *c) {
    if (c->doing == WAITING) waiting--;
    c->doing = OFF;
    if (!warming && now_ns() >= deadline) return;
    if (c->fd >= 0) {
        ask(c);
        return;
    }
    struct sockaddr_in a = loopback(port);
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (c->fd < 0) die("socket");
    nodelay(c->fd);
    c->doing = CONNECTING;
    c->asked_at = now_ns();
    struct epoll_event e = {.events = EPOLLOUT, .data.u32 = (uint32_t)(c - conns)};
    if (connect(c->fd, (struct sockaddr *)&a, sizeof a) && errno != EINPROGRESS) failed(c, E_CONNECT);
    else if (epoll_ctl(ep, EPOLL_CTL_ADD, c->fd, &e)) die("epoll_ctl");
}

static void connected(conn *c) {
    int error = 0;
    socklen_t n = sizeof error;
    struct epoll_event e = {.events = EPOLLIN, .data.u32 = (uint32_t)(c - conns)};
    getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &n);
    if (error) {
        failed(c, E_CONNECT);
        return;
    }
    if (epoll_ctl(ep, EPOLL_CTL_MOD, c->fd, &e)) die("epoll_ctl");
    ask(c);
}

static void token_came(void *who, uint64_t written_ns) {
    conn *c = who;
    if (!c->warm) return;
    events++;
    if (c->came_at < deadline) events_in_time++;
    note(&oneway, c->came_at > written_ns ? c->came_at - written_ns : 0);
    if (c->last_at) note(&itl, c->came_at - c->last_at);
    else note(&ttft, c->came_at - c->asked_at);
    c->last_at = c->came_at;
}

static void answered(conn *c) {
    if (c->r.status != 200) {
        odd_status = c->r.status;
        failed(c, E_STATUS);
        return;
    }
    if (!whole_answer(&c->r, tokens ? (c->warm ? tokens : 2) : 0)) {
        failed(c, E_TRUNCATED);
        return;
    }
    if (c->warm) {
        answers++;
        if (c->came_at < deadline) answers_in_time++;
        if (!tokens) note(&ttft, c->came_at - c->asked_at);
    }
    c->doing = OFF;
    if (c->r.close_after) {
        close(c->fd);
        c->fd = -1;
    }
    if (warming) c->warm = true;
    else if (!burst) start(c);
}

static void readable(conn *c) {
    static char buf[READ_BYTES];
    ssize_t n = recv(c->fd, buf, sizeof buf, 0);
    if (n < 0 && errno == EAGAIN) return;
    c->came_at = now_ns();
    if (c->doing != ASKED) {
        if (n > 0) errors[E_FRAMING]++;               /* bytes that nobody asked for */
        close(c->fd);
        c->fd = -1;                                   /* an idle connection may be closed */
        return;
    }
    if (n <= 0) {
        failed(c, n == 0 && c->r.status ? E_TRUNCATED : E_RESET);
        return;
    }
    ssize_t used = reader_feed(&c->r, buf, (size_t)n, token_came, c);
    if (used < 0 || (used < n && c->r.at == DONE)) failed(c, E_FRAMING);
    else if (c->r.at == DONE) answered(c);
}

static bool all_off(void) {
    for (int i = 0; i < n_conns; i++)
        if (conns[i].doing != OFF) return false;
    return true;
}

static void start_due(void) {
    uint64_t now = now_ns(), next = 0;
    for (int i = 0; i < n_conns; i++) {
        conn *c = &conns[i];
        if (c->doing == WAITING && c->start_at <= now) start(c);
        if (c->doing == WAITING && (!next || c->start_at < next)) next = c->start_at;
    }
    wake_at(timer, next);
}

/* Runs until no connection does anything, or the limit passed; in a burst, wave after wave with a
 * short pause, in which every answer's end has reached everyone. */
static void run(uint64_t limit) {
    const struct timespec pause = {.tv_nsec = RETRY_NS};
    struct epoll_event ev[EVENTS];
    uint64_t ticks;
    for (;;) {
        if (all_off()) {
            if (warming || !burst || now_ns() >= deadline) return;
            if (!warming) nanosleep(&pause, NULL);
            for (int i = 0; i < n_conns; i++) start(&conns[i]);
        }
        int n = epoll_wait(ep, ev, EVENTS, 100);
        for (int i = 0; i < n; i++) {
            if (ev[i].data.u32 == UINT32_MAX) {
                if (read(timer, &ticks, sizeof ticks) < 0 && errno != EAGAIN) die("timerfd");
                continue;
            }
            conn *c = &conns[ev[i].data.u32];
            if (c->fd < 0) continue;
            if (c->doing == CONNECTING) connected(c);
            else if (ev[i].events & EPOLLOUT && c->doing == ASKED) send_rest(c);
            else readable(c);
        }
        if (waiting) start_due();
        if (now_ns() > limit) return;
    }
}

static int by_size(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static void print_samples(const char *name, samples *s) {
    qsort(s->v, s->n, sizeof *s->v, by_size);
    printf(",\"%s_ms\":{\"n\":%zu", name, s->n);
    if (s->n) printf(",\"p50\":%.4f,\"p99\":%.4f,\"max\":%.4f", (double)s->v[s->n / 2],
                     (double)s->v[(size_t)((double)(s->n - 1) * 0.99)], (double)s->v[s->n - 1]);
    printf("}");
}

static double cpu_s(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec)
        + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

int main(int argc, char **argv) {
    if (argc != 9) die("usage: client PORT CONNECTIONS SECONDS START TOKENS DELAY_MS PER_SEND PROMPT_BYTES");
    port = atoi(argv[1]);
    n_conns = atoi(argv[2]);
    double seconds = atof(argv[3]);
    burst = !strcmp(argv[4], "burst");
    bool stagger = !strcmp(argv[4], "stagger");
    tokens = (uint32_t)atoi(argv[5]);
    delay_ms = atof(argv[6]);
    per_send = atoi(argv[7]);
    prompt_bytes = atoi(argv[8]);
    if (n_conns < 1 || n_conns > MAX_CONNS) die("connections");
    make_requests();
    ep = epoll_create1(0);
    timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    struct epoll_event e = {.events = EPOLLIN, .data.u32 = UINT32_MAX};
    if (epoll_ctl(ep, EPOLL_CTL_ADD, timer, &e)) die("epoll_ctl");

    for (int i = 0; i < n_conns; i++) conns[i].fd = -1, start(&conns[i]);
    run(now_ns() + DRAIN_NS);
    for (int i = 0; i < n_conns; i++)
        if (conns[i].doing != OFF) failed(&conns[i], E_TIMEOUT);

    warming = false;
    double cpu = cpu_s(), length_ns = tokens > 1 ? (tokens - 1) * delay_ms * MS_NS : 0;
    began = now_ns();
    deadline = began + (uint64_t)(seconds * SECOND_NS);
    for (int i = 0; i < n_conns; i++) {
        if (stagger) wait_until(&conns[i], began + (uint64_t)(length_ns * i / n_conns));
        else start(&conns[i]);
    }
    if (stagger) start_due();
    run(deadline + (uint64_t)length_ns + DRAIN_NS);
    uint64_t ended = now_ns();
    cpu = cpu_s() - cpu;
    for (int i = 0; i < n_conns; i++)
        errors[E_TIMEOUT] += conns[i].doing == ASKED || conns[i].doing == CONNECTING;

    printf("{\"requests\":%llu,\"requests_per_s\":%.1f,\"chunks\":%llu,\"chunks_per_s\":%.1f",
           answers, (double)answers_in_time / seconds, events, (double)events_in_time / seconds);
    print_samples("ttft", &ttft);
    print_samples("itl", &itl);
    print_samples("oneway", &oneway);
    unsigned long long all = 0;
    printf(",\"cpu_s\":%.4f,\"wall_s\":%.4f,\"odd_status\":%d,\"errors_by_kind\":{", cpu,
           (double)(ended - began) / SECOND_NS, odd_status);
    for (int i = 0; i < E_KINDS; i++) {
        printf("%s\"%s\":%llu", i ? "," : "", E_NAMES[i], errors[i]);
        all += errors[i];
    }
    printf("},\"errors\":%llu}\n", all);
    return 0;
}
