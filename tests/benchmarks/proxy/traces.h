/* Counts the spans of an OTLP ExportTraceServiceRequest: its field 1 (ResourceSpans), in it field 2
 * (ScopeSpans), in it field 2 (Span). Knows no more of Protocol Buffers than that needs. */
#ifndef BENCH_TRACES_H
#define BENCH_TRACES_H

#include <stddef.h>
#include <stdint.h>

/* Reads a varint. False: it is cut or too long. */
static bool varint(const uint8_t **p, const uint8_t *end, uint64_t *value) {
    *value = 0;
    for (int shift = 0; *p < end && shift < 64; shift += 7) {
        uint8_t byte = *(*p)++;
        *value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) return true;
    }
    return false;
}

/* How many submessages there are at the end of this path of fields, or -1 if it is malformed. */
static long count_path(const uint8_t *p, size_t n, const int *path, int depth) {
    const uint8_t *end = p + n;
    long found = 0;
    uint64_t tag, len;
    while (p < end) {
        if (!varint(&p, end, &tag)) return -1;
        int type = (int)(tag & 7);
        if (type == 0) {
            if (!varint(&p, end, &len)) return -1;
            continue;
        }
        if (type == 1 || type == 5) len = type == 1 ? 8 : 4;
        else if (type != 2 || !varint(&p, end, &len)) return -1;
        if (len > (uint64_t)(end - p)) return -1;
        if (type == 2 && tag >> 3 == (uint64_t)path[0]) {
            long inside = depth > 1 ? count_path(p, len, path + 1, depth - 1) : 1;
            if (inside < 0) return -1;
            found += inside;
        }
        p += len;
    }
    return found;
}

static long count_spans(const char *body, size_t n) {
    static const int PATH[] = {1, 2, 2};
    return count_path((const uint8_t *)body, n, PATH, 3);
}

#endif
