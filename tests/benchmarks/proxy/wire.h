/* What the scripted engine and the load client share: a clock, header look-up, numbers, sockets.
 * Knows HTTP/1.1's head syntax and nothing of what is served or measured. */
#ifndef BENCH_WIRE_H
#define BENCH_WIRE_H

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum { SECOND_NS = 1000000000, MS_NS = 1000000, MAX_FD = 20480, EVENTS = 256 };

/* CLOCK_MONOTONIC is one clock for every process of a machine: that is what makes the
 * timestamp inside a token comparable with the client's reading. */
static inline uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * SECOND_NS + (uint64_t)t.tv_nsec;
}

static inline void die(const char *what) {
    perror(what);
    exit(2);
}

static inline void *grown(void *p, size_t need, size_t *cap) {
    if (need <= *cap) return p;
    size_t c = *cap ? *cap : 4096;
    while (c < need) c *= 2;
    p = realloc(p, c);
    if (!p) die("realloc");
    *cap = c;
    return p;
}

/* Value of a header in a head that ends in CRLF CRLF, or NULL. */
static inline const char *header(const char *head, size_t len, const char *name, size_t *vlen) {
    size_t n = strlen(name);
    const char *p = head, *end = head + len;
    while (p < end) {
        const char *eol = memchr(p, '\n', (size_t)(end - p));
        if (!eol) break;
        if ((size_t)(eol - p) > n && p[n] == ':' && strncasecmp(p, name, n) == 0) {
            const char *v = p + n + 1, *e = eol;
            while (v < e && (*v == ' ' || *v == '\t')) v++;
            while (e > v && (e[-1] == '\r' || e[-1] == ' ' || e[-1] == '\t')) e--;
            *vlen = (size_t)(e - v);
            return v;
        }
        p = eol + 1;
    }
    return NULL;
}

static inline bool header_is(const char *head, size_t len, const char *name, const char *value) {
    size_t n;
    const char *v = header(head, len, name, &n);
    return v && n == strlen(value) && strncasecmp(v, value, n) == 0;
}

/* A whole decimal number of 1 to 18 digits, or -1. */
static inline long long decimal(const char *p, size_t n) {
    if (n == 0 || n > 18) return -1;
    long long x = 0;
    for (size_t i = 0; i < n; i++) {
        if (p[i] < '0' || p[i] > '9') return -1;
        x = x * 10 + (p[i] - '0');
    }
    return x;
}

static inline int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

static inline void nodelay(int fd) {
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

static inline struct sockaddr_in loopback(int port) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return a;
}

static inline void epoll_add(int ep, int fd, uint32_t events) {
    struct epoll_event e = {.events = events, .data.fd = fd};
    if (epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e)) die("epoll_ctl add");
}

static inline void epoll_change(int ep, int fd, uint32_t events) {
    struct epoll_event e = {.events = events, .data.fd = fd};
    if (epoll_ctl(ep, EPOLL_CTL_MOD, fd, &e)) die("epoll_ctl mod");
}

/* A timerfd and not epoll's timeout: that one counts whole milliseconds. 0 disarms. */
static inline void wake_at(int timer, uint64_t at_ns) {
    struct itimerspec t = {.it_value = {(time_t)(at_ns / SECOND_NS), (long)(at_ns % SECOND_NS)}};
    if (timerfd_settime(timer, TFD_TIMER_ABSTIME, &t, NULL)) die("timerfd_settime");
}

#endif
