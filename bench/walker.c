/* SPDX-License-Identifier: Apache-2.0 */
/* The lower bound for a reader of pickles: walks the opcodes of protocols 0 to 5 and builds
 * nothing. Arguments are skipped; numbers are added up, so that the walk cannot be left out.
 * Arguments are not checked against the file's end: for whole, trusted files only.
 *
 *     walker FILE [RUNS]      prints one line of JSON */
#include "timing.h"

struct walk {
    uint64_t opcodes, sum;
    int complete; /* a STOP was met */
};

static uint32_t le16(const unsigned char *p) {
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static uint32_t le32(const unsigned char *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static uint64_t le64(const unsigned char *p) {
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* Behind the next newlines. */
static const unsigned char *skip_lines(const unsigned char *at, const unsigned char *end,
                                       int lines) {
    while (lines > 0 && at < end)
        lines -= *at++ == '\n';
    return at;
}

/* The rarer opcodes; at is behind the opcode. NULL: unknown. */
static const unsigned char *skip_rare(unsigned char op, const unsigned char *at,
                                      const unsigned char *end) {
    switch (op) {
    case 'I': case 'L': case 'F': case 'S': case 'V': case 'P': case 'g': case 'p':
        return skip_lines(at, end, 1);
    case 'c': case 'i':
        return skip_lines(at, end, 2);
    case 0x80: case 0x82: /* PROTO, EXT1 */
        return at + 1;
    case 0x83: /* EXT2 */
        return at + 2;
    case 0x84: /* EXT4 */
        return at + 4;
    case 'U': case 'C': /* SHORT_BINSTRING, SHORT_BINBYTES */
        return at + 1 + at[0];
    case 'T': case 'B': case 0x8b: /* BINSTRING, BINBYTES, LONG4 */
        return at + 4 + le32(at);
    case 0x8d: case 0x8e: case 0x96: /* BINUNICODE8, BINBYTES8, BYTEARRAY8 */
        return le64(at) > (uint64_t)(end - at) ? NULL : at + 8 + le64(at);
    case '0': case '1': case '2': case 'N': case 'Q': case 'R': case 'a': case 'b': case 'd':
    case 'l': case 'o': case 's': case 't': case ')': case 0x81: case 0x85: case 0x86: case 0x87:
    case 0x88: case 0x89: case 0x8f: case 0x90: case 0x91: case 0x92: case 0x93: case 0x97:
    case 0x98:
        return at;
    default:
        return NULL;
    }
}

/* Walks to STOP; the opcodes of snapshots come first, so that nothing slows them down. */
static struct walk walk(const unsigned char *at, const unsigned char *end) {
    struct walk w = {0, 0, 0};

    while (at != NULL && at < end) {
        unsigned char op = *at++;
        w.opcodes++;
        switch (op) {
        case 'h': /* BINGET */
        case 'q': /* BINPUT */
        case 'K': /* BININT1 */
            w.sum += *at++;
            break;
        case 'j': /* LONG_BINGET */
        case 'r': /* LONG_BINPUT */
        case 'J': /* BININT */
            w.sum += le32(at);
            at += 4;
            break;
        case 'M': /* BININT2 */
            w.sum += le16(at);
            at += 2;
            break;
        case 0x8a: /* LONG1 */
        case 0x8c: /* SHORT_BINUNICODE */
            w.sum += at[1];
            at += 1 + at[0];
            break;
        case 'X': /* BINUNICODE */
            at += 4 + (size_t)le32(at);
            break;
        case 'G':  /* BINFLOAT */
        case 0x95: /* FRAME: its opcodes follow */
            at += 8;
            break;
        case '}': case ']': case '(': case 'u': case 'e': case 0x94:
            break;
        case '.':
            w.complete = 1;
            return w;
        default:
            at = skip_rare(op, at, end);
        }
    }
    return w;
}

int main(int argc, char **argv) {
    static struct bench_times times;
    char extra[96];
    struct walk w = {0, 0, 0};

    if (argc < 2) {
        fprintf(stderr, "usage: walker FILE [RUNS]\n");
        return 2;
    }
    struct bench_file file = bench_open(argv[1]);
    times.runs = bench_runs(argc, argv);
    for (size_t i = 0; i < times.runs; i++) {
        bench_begin(&times, i);
        w = walk(file.bytes, file.bytes + file.size_bytes);
        bench_end(&times, i);
    }
    if (w.complete == 0) {
        fprintf(stderr, "%s: not a whole pickle\n", argv[1]);
        return 2;
    }
    snprintf(extra, sizeof extra, ", \"opcodes\": %llu, \"sum\": %llu",
             (unsigned long long)w.opcodes, (unsigned long long)w.sum);
    bench_print(&file, &times, extra);
    return 0;
}
