/* What the scripted engine reads of a request's body. Knows no socket and no answer. */
#ifndef BENCH_REQUEST_H
#define BENCH_REQUEST_H

#include "wire.h"

enum { MAX_BODY = 64 << 20 };

/* The number (true is 1) that follows a name anywhere in the body; 0 if it is none. */
static double field(const char *body, size_t len, const char *name, double otherwise) {
    const char *p = memmem(body, len, name, strlen(name)), *end = body + len;
    if (!p) return otherwise;
    for (p += strlen(name); p < end && (*p == ' ' || *p == ':' || *p == '"' || *p == '='); p++) {}
    if (p + 4 <= end && !memcmp(p, "true", 4)) return 1;
    char digits[24];
    size_t n = 0;
    while (p < end && n < sizeof digits - 1 && ((*p >= '0' && *p <= '9') || *p == '.')) digits[n++] = *p++;
    digits[n] = 0;
    return n ? atof(digits) : 0;
}

/* Removes chunked framing in place. Bytes used, 0 when more must come, -1 when malformed. */
static ssize_t dechunk(char *p, size_t n, size_t *body_len) {
    size_t at = 0, to = 0;
    for (;;) {
        char *eol = memmem(p + at, n - at, "\r\n", 2);
        if (!eol) return 0;
        size_t size = 0;
        if (hex_digit(p[at]) < 0) return -1;
        for (char *q = p + at; hex_digit(*q) >= 0; q++) size = size * 16 + (size_t)hex_digit(*q);
        if (size > MAX_BODY) return -1;
        at = (size_t)(eol - p) + 2;
        if (at + size + 2 > n) return 0;
        memmove(p + to, p + at, size);
        to += size;
        at += size + 2;
        if (!size) {
            *body_len = to;
            return (ssize_t)at;      /* no client here sends trailers */
        }
    }
}

#endif
