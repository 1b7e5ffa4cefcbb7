/* Holds many paced streams open at once. One thread, epoll. Prints two JSON lines.
 *
 * usage: holder PORT STREAMS RAMP_S SECONDS DELAY_MS
 *   Streams start evenly over RAMP_S. What arrives in the SECONDS after that is counted. Each is
 *   asked for enough tokens to go on beyond them. The first line says that the window begins, the
 *   second what came. Then it waits for a byte on its standard input, so that the memory of all
 *   open streams can be read, and leaves.
 *
 * A token's lateness is the time from its writing by the engine to its reading here. Of each stream
 * the tokens and the mean lateness are known: how evenly the streams are served. */
#define _GNU_SOURCE
#include "answer.h"
#include <sys/resource.h>

typedef struct {
    int fd;
    bool open, began;
    uint64_t asked_at, came_at;
    unsigned long long tokens;
    double lateness_ms;
    reader r;
} stream;

static stream *streams;
static int ep, port, n_streams, started, ended_early, refused;
static uint64_t window_at, deadline;
static char request[1024];
static size_t request_len;
static float *lateness, *ttft;
static size_t n_lateness, cap_lateness, n_ttft, cap_ttft;

static void push(float **v, size_t *n, size_t *cap, double ms) {
    *v = grown(*v, (*n + 1) * sizeof **v, cap);
    (*v)[(*n)++] = (float)ms;
}

static void token_came(void *who, uint64_t written_ns) {
    stream *s = who;
    double ms = (double)(s->came_at > written_ns ? s->came_at - written_ns : 0) / MS_NS;
    if (!s->began) push(&ttft, &n_ttft, &cap_ttft, (double)(s->came_at - s->asked_at) / MS_NS);
    s->began = true;
    if (s->came_at < window_at || s->came_at >= deadline) return;
    s->tokens++;
    s->lateness_ms += ms;
    push(&lateness, &n_lateness, &cap_lateness, ms);
}

static void start(stream *s) {
    struct sockaddr_in a = loopback(port);
    s->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (s->fd < 0) die("socket");
    nodelay(s->fd);
    s->asked_at = now_ns();
    if (connect(s->fd, (struct sockaddr *)&a, sizeof a)) die("connect");
    if (send(s->fd, request, request_len, MSG_NOSIGNAL) != (ssize_t)request_len) die("send");
    reader_reset(&s->r, true);
    s->open = true;
    struct epoll_event e = {.events = EPOLLIN, .data.u32 = (uint32_t)(s - streams)};
    if (epoll_ctl(ep, EPOLL_CTL_ADD, s->fd, &e)) die("epoll_ctl");
}

static void readable(stream *s) {
    static char buf[65536];
    ssize_t n = recv(s->fd, buf, sizeof buf, MSG_DONTWAIT);
    if (n < 0 && errno == EAGAIN) return;
    s->came_at = now_ns();
    if (n > 0 && reader_feed(&s->r, buf, (size_t)n, token_came, s) == n && s->r.at != DONE) return;
    if (s->r.status && s->r.status != 200) refused++;
    else ended_early++;
    close(s->fd);
    s->open = false;
}

static int by_size(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static void print_percentiles(const char *name, float *v, size_t n) {
    qsort(v, n, sizeof *v, by_size);
    printf(",\"%s_ms\":{\"n\":%zu", name, n);
    if (n) printf(",\"p50\":%.4f,\"p99\":%.4f,\"max\":%.4f", (double)v[n / 2],
                  (double)v[(size_t)((double)(n - 1) * 0.99)], (double)v[n - 1]);
    printf("}");
}

/* (sum x)^2 / (n sum x^2): 1 when all are equal, 1/n when one has everything. */
static double jain(void) {
    double sum = 0, squares = 0;
    for (int i = 0; i < n_streams; i++) {
        double x = (double)streams[i].tokens;
        sum += x;
        squares += x * x;
    }
    return squares > 0 ? sum * sum / (n_streams * squares) : 0;
}

int main(int argc, char **argv) {
    if (argc != 6) die("usage: holder PORT STREAMS RAMP_S SECONDS DELAY_MS");
    port = atoi(argv[1]);
    n_streams = atoi(argv[2]);
    double ramp_s = atof(argv[3]), seconds = atof(argv[4]), delay_ms = atof(argv[5]);
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    streams = calloc((size_t)n_streams, sizeof *streams);
    if (!streams) die("calloc");
    char body[512];
    int len = snprintf(body, sizeof body, "{\"model\":\"tiny\",\"messages\":[{\"role\":\"user\",\"content\":"
        "\"Say something about foxes. delay_ms=%g\"}],\"temperature\":0.7,\"max_tokens\":%d,\"stream\":true}",
        delay_ms, (int)((ramp_s * 2 + seconds + 30) * 1000 / delay_ms) + 2);
    request_len = (size_t)snprintf(request, sizeof request,
        "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\n"
        "Content-Length: %d\r\n\r\n%s", port, len, body);
    ep = epoll_create1(0);
    struct epoll_event ev[EVENTS];
    uint64_t began = now_ns();
    window_at = deadline = UINT64_MAX;
    while (now_ns() < deadline) {
        double elapsed = (double)(now_ns() - began) / SECOND_NS;
        int due = ramp_s > 0 && elapsed < ramp_s ? (int)(n_streams * elapsed / ramp_s) : n_streams;
        for (int most = started + 32; started < due && started < most; started++) start(&streams[started]);
        if (window_at == UINT64_MAX && n_ttft + (size_t)(refused + ended_early) >= (size_t)n_streams) {
            printf("{\"window\":true}\n");
            fflush(stdout);
            window_at = now_ns();
            deadline = window_at + (uint64_t)(seconds * SECOND_NS);
        }
        int n = epoll_wait(ep, ev, EVENTS, started < n_streams ? 1 : 100);
        for (int i = 0; i < n; i++) readable(&streams[ev[i].data.u32]);
    }
    int open = 0;
    float *means = malloc((size_t)n_streams * sizeof *means);
    if (!means) die("malloc");
    size_t n_means = 0;
    unsigned long long tokens = 0, least = UINT64_MAX, most = 0;
    for (int i = 0; i < n_streams; i++) {
        stream *s = &streams[i];
        open += s->open;
        tokens += s->tokens;
        if (s->tokens < least) least = s->tokens;
        if (s->tokens > most) most = s->tokens;
        if (s->tokens) means[n_means++] = (float)(s->lateness_ms / (double)s->tokens);
    }
    printf("{\"open\":%d,\"refused\":%d,\"ended_early\":%d,\"tokens\":%llu,\"tokens_per_s\":%.1f"
           ",\"least\":%llu,\"most\":%llu,\"jain\":%.6f", open, refused, ended_early, tokens,
           (double)tokens / seconds, least, most, jain());
    print_percentiles("lateness", lateness, n_lateness);
    print_percentiles("ttft", ttft, n_ttft);
    print_percentiles("stream_mean_lateness", means, n_means);
    printf("}\n");
    fflush(stdout);
    getchar();
    return 0;
}
