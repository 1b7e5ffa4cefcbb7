/* A binary heap of what is due, the earliest first. Each entry knows its place, so that any of them
 * leaves in logarithmic time. Knows nothing of what an entry belongs to. */
#ifndef BENCH_SCHEDULE_H
#define BENCH_SCHEDULE_H

#include <stdint.h>

typedef struct { uint64_t due_ns; int pos; } due;
typedef struct { due **v; int n; } schedule;

static void schedule_place(schedule *s, due *d, int at) {
    s->v[at] = d;
    d->pos = at;
}

static void schedule_sift(schedule *s, due *d) {
    int at = d->pos;
    for (int up = (at - 1) / 2; at > 0 && s->v[up]->due_ns > d->due_ns; up = (at - 1) / 2) {
        schedule_place(s, s->v[up], at);
        at = up;
    }
    for (int down = 2 * at + 1; down < s->n; down = 2 * at + 1) {
        if (down + 1 < s->n && s->v[down + 1]->due_ns < s->v[down]->due_ns) down++;
        if (s->v[down]->due_ns >= d->due_ns) break;
        schedule_place(s, s->v[down], at);
        at = down;
    }
    schedule_place(s, d, at);
}

static void schedule_add(schedule *s, due *d) {
    schedule_place(s, d, s->n++);
    schedule_sift(s, d);
}

static void schedule_remove(schedule *s, due *d) {
    due *last = s->v[--s->n];
    if (last == d) return;
    schedule_place(s, last, d->pos);
    schedule_sift(s, last);
}

#endif
