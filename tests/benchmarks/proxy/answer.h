/* Reads one HTTP/1.1 answer at a time out of a byte stream, strictly, and counts its tokens.
 *
 * What is not exactly framed (status line, Content-Length or chunked, CRLFs, hex sizes) is
 * malformed; an answer without framing is too, because keep-alive is what is measured. Knows no
 * socket and no clock: the caller says when the bytes came and takes the events by callback. */
#ifndef BENCH_ANSWER_H
#define BENCH_ANSWER_H

#include "wire.h"

enum { LINE_MAX_BYTES = 8192, HEAD_MAX_BYTES = 16384 };

typedef struct {
    enum { HEAD, LENGTH, SIZE, DATA, DATA_END, TRAILER, DONE } at;
    int status;
    bool stream, close_after, said_done;
    size_t left, len;             /* body bytes to come; bytes held in text */
    uint32_t tokens, data_lines;
    char first, last;             /* of the body, to tell a whole JSON object */
    char text[HEAD_MAX_BYTES];    /* the head, then a chunk size or trailer line */
    size_t line_len;
    char line[LINE_MAX_BYTES];    /* an SSE line that is not whole yet */
} reader;

typedef void (*on_token)(void *who, uint64_t written_ns);

static inline void reader_reset(reader *r, bool stream) {
    r->at = HEAD;
    r->status = 0;
    r->stream = stream;
    r->close_after = r->said_done = false;
    r->left = r->len = r->line_len = 0;
    r->tokens = r->data_lines = 0;
    r->first = r->last = 0;
}

static inline void sse_line(reader *r, const char *p, size_t n, on_token f, void *who) {
    static const char KEY[] = "\"content\":\"";
    if (n && p[n - 1] == '\r') n--;
    if (n < 6 || memcmp(p, "data: ", 6)) return;
    r->data_lines++;
    if (n == 12 && !memcmp(p + 6, "[DONE]", 6)) {
        r->said_done = true;
        return;
    }
    const char *key = memmem(p, n, KEY, sizeof KEY - 1), *end = p + n;
    if (!key) return;
    uint64_t stamp = 0;
    const char *q = key + sizeof KEY - 1;
    for (; q < end && *q >= '0' && *q <= '9'; q++) stamp = stamp * 10 + (uint64_t)(*q - '0');
    if (q == key + sizeof KEY - 1) return;
    r->tokens++;
    f(who, stamp);
}

static inline bool body_bytes(reader *r, const char *p, size_t n, on_token f, void *who) {
    if (!n) return true;
    if (!r->first) r->first = *p;
    r->last = p[n - 1];
    if (!r->stream) return true;
    const char *end = p + n;
    while (p < end) {
        const char *eol = memchr(p, '\n', (size_t)(end - p));
        size_t len = (size_t)((eol ? eol : end) - p);
        if (r->line_len || !eol) {
            if (r->line_len + len > LINE_MAX_BYTES) return false;
            memcpy(r->line + r->line_len, p, len);
            r->line_len += len;
            if (!eol) return true;
            sse_line(r, r->line, r->line_len, f, who);
            r->line_len = 0;
        } else {
            sse_line(r, p, len, f, who);
        }
        p = eol + 1;
    }
    return true;
}

static inline bool read_head(reader *r) {
    const char *h = r->text;
    size_t n;
    if (r->len < 16 || (memcmp(h, "HTTP/1.1 ", 9) && memcmp(h, "HTTP/1.0 ", 9))) return false;
    r->status = (int)decimal(h + 9, 3);
    if (r->status < 100 || r->status > 599) return false;
    if (r->status < 200) {
        r->len = 0;               /* an interim answer: the next head is the one */
        return true;
    }
    r->close_after = h[7] == '0' || header_is(h, r->len, "connection", "close");
    if (header(h, r->len, "transfer-encoding", &n)) {
        if (!header_is(h, r->len, "transfer-encoding", "chunked")) return false;
        if (header(h, r->len, "content-length", &n)) return false;
        r->at = SIZE;
    } else {
        const char *v = header(h, r->len, "content-length", &n);
        long long left = v ? decimal(v, n) : -1;
        if (left < 0) return false;
        r->left = (size_t)left;
        r->at = left ? LENGTH : DONE;
    }
    r->len = 0;
    return true;
}

/* Adds up to and with the next LF to text. 1 when the line is whole, 0 not yet, -1 too long. */
static inline int take_line(reader *r, const char **p, const char *end) {
    const char *eol = memchr(*p, '\n', (size_t)(end - *p));
    size_t n = (size_t)((eol ? eol + 1 : end) - *p);
    if (r->len + n > HEAD_MAX_BYTES) return -1;
    memcpy(r->text + r->len, *p, n);
    r->len += n;
    *p += n;
    return eol ? 1 : 0;
}

static inline bool chunk_size(reader *r) {
    size_t i = 0, size = 0;
    for (; i < r->len && hex_digit(r->text[i]) >= 0; i++)
        size = size * 16 + (size_t)hex_digit(r->text[i]);
    if (!i || i > 8 || (r->text[i] != '\r' && r->text[i] != ';')) return false;
    if (r->text[r->len - 2] != '\r') return false;
    r->left = size;
    r->at = size ? DATA : TRAILER;
    r->len = 0;
    return true;
}

/* Feeds bytes. How many were used (all of them, or up to the answer's end: then at == DONE),
 * or -1 when they are malformed. */
static inline ssize_t reader_feed(reader *r, const char *start, size_t n, on_token f, void *who) {
    const char *p = start, *end = start + n;
    while (p < end && r->at != DONE) {
        if (r->at == LENGTH || r->at == DATA) {
            size_t k = (size_t)(end - p) < r->left ? (size_t)(end - p) : r->left;
            if (!body_bytes(r, p, k, f, who)) return -1;
            p += k;
            r->left -= k;
            if (!r->left) r->at = r->at == LENGTH ? DONE : DATA_END;
            continue;
        }
        int whole = take_line(r, &p, end);
        if (whole < 0) return -1;
        if (!whole) break;
        bool empty = r->len == 2 && r->text[0] == '\r';
        if (r->at == HEAD) {
            if (r->len >= 4 && !memcmp(r->text + r->len - 4, "\r\n\r\n", 4) && !read_head(r)) return -1;
        } else if (r->at == SIZE) {
            if (!chunk_size(r)) return -1;
        } else if (r->at == DATA_END) {
            if (!empty) return -1;
            r->at = SIZE;
            r->len = 0;
        } else {
            if (empty) r->at = DONE;
            r->len = 0;
        }
    }
    return p - start;
}

/* Of a DONE answer: is it all of what was asked for? */
static inline bool whole_answer(const reader *r, uint32_t tokens) {
    if (!r->stream) return r->first == '{' && r->last == '}';
    return r->said_done && r->tokens == tokens && !r->line_len;
}

#endif
