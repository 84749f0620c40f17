/* SPDX-License-Identifier: Apache-2.0 */
/* Three codecs behind one loop. A codec's step() moves bytes from the input to the output and says
 * whether a member has ended; the loop makes room, goes on to the next member, and tells a file cut
 * short (no more input, member not ended) from a damaged one. */
#include "decompress.h"

#include <lzma.h>
#include <stdbool.h>
#include <string.h>
#include <zlib.h>
#include <zstd.h>

#include "figures.h"

/* What a decoder may keep for itself: enough for xz -9 (65 MiB) and zstd --long=27. */
#define WINDOW_BYTES_MAX ((uint64_t)128 << 20)
#define ZSTD_WINDOW_LOG_MAX 27
/* zlib counts in unsigned int. */
#define PIECE_BYTES_MAX ((size_t)1 << 30)
/* The first byte of a pickle of protocol 2 and above. */
#define PICKLE_PROTO 0x80

enum step_result { STEP_MORE, STEP_MEMBER_ENDED, STEP_WRONG };

struct unpacking {
    const unsigned char *in;
    size_t in_bytes, at; /* at: consumed so far */
    struct buffer *out;
    const char *reason; /* of STEP_WRONG */
    union {
        z_stream gzip;
        lzma_stream xz;
        ZSTD_DStream *zstd;
    } state;
};

struct codec {
    const char *name;   /* as file names end */
    const char *called; /* in sentences */
    bool (*open)(struct unpacking *u);
    enum step_result (*step)(struct unpacking *u);
    void (*close)(struct unpacking *u);
};

static enum step_result wrong(struct unpacking *u, const char *reason) {
    u->reason = reason;
    return STEP_WRONG;
}

static bool gzip_open(struct unpacking *u) {
    memset(&u->state.gzip, 0, sizeof u->state.gzip);
    return inflateInit2(&u->state.gzip, 15 + 16) == Z_OK; /* 16: gzip's header and checksum */
}

static unsigned piece(size_t bytes) {
    return (unsigned)(bytes < PIECE_BYTES_MAX ? bytes : PIECE_BYTES_MAX);
}

static enum step_result gzip_step(struct unpacking *u) {
    z_stream *z = &u->state.gzip;
    unsigned in = piece(u->in_bytes - u->at);
    unsigned room = piece(u->out->room_bytes - u->out->size_bytes);
    int status;

    z->next_in = (unsigned char *)(uintptr_t)(u->in + u->at); /* zlib's type lacks the const */
    z->avail_in = in;
    z->next_out = u->out->bytes + u->out->size_bytes;
    z->avail_out = room;
    status = inflate(z, Z_NO_FLUSH);
    u->at += in - z->avail_in;
    u->out->size_bytes += room - z->avail_out;
    switch (status) {
    case Z_OK:
    case Z_BUF_ERROR: /* nothing to do without more input: the loop sees that */
        return STEP_MORE;
    case Z_STREAM_END:
        return inflateReset(z) == Z_OK ? STEP_MEMBER_ENDED : wrong(u, "is in a wrong state");
    case Z_MEM_ERROR:
        return wrong(u, "cannot be unpacked: not enough memory");
    default:
        return wrong(u, "is damaged");
    }
}

static void gzip_close(struct unpacking *u) {
    inflateEnd(&u->state.gzip);
}

static bool xz_open(struct unpacking *u) {
    static const lzma_stream fresh = LZMA_STREAM_INIT;

    u->state.xz = fresh;
    return lzma_stream_decoder(&u->state.xz, WINDOW_BYTES_MAX, LZMA_CONCATENATED) == LZMA_OK;
}

static enum step_result xz_step(struct unpacking *u) {
    lzma_stream *xz = &u->state.xz;
    size_t in = u->in_bytes - u->at;
    size_t room = u->out->room_bytes - u->out->size_bytes;
    lzma_ret status;

    xz->next_in = u->in + u->at;
    xz->avail_in = in;
    xz->next_out = u->out->bytes + u->out->size_bytes;
    xz->avail_out = room;
    status = lzma_code(xz, LZMA_FINISH);
    u->at += in - xz->avail_in;
    u->out->size_bytes += room - xz->avail_out;
    switch (status) {
    case LZMA_OK:
    case LZMA_BUF_ERROR: /* as Z_BUF_ERROR */
        return STEP_MORE;
    case LZMA_STREAM_END: /* of all members */
        return STEP_MEMBER_ENDED;
    case LZMA_MEMLIMIT_ERROR:
        return wrong(u, "needs a window of more than 128 MiB to be unpacked");
    case LZMA_MEM_ERROR:
        return wrong(u, "cannot be unpacked: not enough memory");
    case LZMA_OPTIONS_ERROR:
        return wrong(u, "uses a filter that is not read here");
    case LZMA_FORMAT_ERROR: /* the first member had its magic bytes */
        return wrong(u, "is followed by something else");
    default:
        return wrong(u, "is damaged");
    }
}

static void xz_close(struct unpacking *u) {
    lzma_end(&u->state.xz);
}

static bool zstd_open(struct unpacking *u) {
    u->state.zstd = ZSTD_createDStream();
    if (u->state.zstd == NULL)
        return false;
    return !ZSTD_isError(
        ZSTD_DCtx_setParameter(u->state.zstd, ZSTD_d_windowLogMax, ZSTD_WINDOW_LOG_MAX));
}

static enum step_result zstd_step(struct unpacking *u) {
    ZSTD_inBuffer in = {u->in, u->in_bytes, u->at};
    ZSTD_outBuffer out = {u->out->bytes, u->out->room_bytes, u->out->size_bytes};
    size_t status = ZSTD_decompressStream(u->state.zstd, &out, &in);

    u->at = in.pos;
    u->out->size_bytes = out.pos;
    if (!ZSTD_isError(status))
        return status == 0 ? STEP_MEMBER_ENDED : STEP_MORE;
    if (strstr(ZSTD_getErrorName(status), "too much memory") != NULL)
        return wrong(u, "needs a window of more than 128 MiB to be unpacked");
    return wrong(u, "is damaged");
}

static void zstd_close(struct unpacking *u) {
    ZSTD_freeDStream(u->state.zstd);
}

static const struct codec codecs[] = {
    [PACKING_NONE] = {"", "", NULL, NULL, NULL},
    [PACKING_GZIP] = {"gz", "gzip", gzip_open, gzip_step, gzip_close},
    [PACKING_XZ] = {"xz", "xz", xz_open, xz_step, xz_close},
    [PACKING_ZSTD] = {"zst", "zstd", zstd_open, zstd_step, zstd_close},
};

const char *packing_name(enum packing packing) {
    return codecs[packing].name;
}

enum packing packing_detect(const unsigned char *bytes, size_t size_bytes) {
    static const unsigned char gzip[] = {0x1f, 0x8b};
    static const unsigned char xz[] = {0xfd, '7', 'z', 'X', 'Z', 0};
    static const unsigned char zstd[] = {0x28, 0xb5, 0x2f, 0xfd};
    static const unsigned char skippable[] = {0x2a, 0x4d, 0x18}; /* after 0x50 to 0x5f */

    if (size_bytes >= sizeof gzip && memcmp(bytes, gzip, sizeof gzip) == 0)
        return PACKING_GZIP;
    if (size_bytes >= sizeof xz && memcmp(bytes, xz, sizeof xz) == 0)
        return PACKING_XZ;
    if (size_bytes >= sizeof zstd && memcmp(bytes, zstd, sizeof zstd) == 0)
        return PACKING_ZSTD;
    if (size_bytes >= sizeof zstd && (bytes[0] & 0xf0) == 0x50 &&
        memcmp(bytes + 1, skippable, sizeof skippable) == 0)
        return PACKING_ZSTD; /* pzstd begins so */
    return PACKING_NONE;
}

enum unpack_result unpack_short_of_memory(enum buffer_result result, const struct buffer *out,
                                          size_t at, struct sentence *why) {
    struct figure limit = size_figure((double)out->share->budget->limit_bytes);

    if (result == BUFFER_LATER)
        return UNPACK_LATER;
    if (result == BUFFER_NO_MEMORY)
        sentence_set(why, "at byte %zu: not enough memory to read on", at);
    else
        sentence_set(why, "at byte %zu: holds more than the %s that a file may take here; "
                          "--memory SIZE allows more", at, limit.text);
    return UNPACK_FAILED;
}

static bool only_zeros_left(const struct unpacking *u) {
    for (size_t i = u->at; i < u->in_bytes; i++) {
        if (u->in[i] != 0)
            return false;
    }
    return true;
}

static enum unpack_result unpack_all(struct unpacking *u, const struct codec *codec,
                                     struct sentence *why) {
    bool fresh_member = false; /* one has ended, and the next has given nothing yet */

    for (;;) {
        size_t at = u->at, filled = u->out->size_bytes;
        enum step_result result;

        if (filled == u->out->room_bytes) {
            enum buffer_result grown = buffer_grow(u->out);

            if (grown != BUFFER_GROWN)
                return unpack_short_of_memory(grown, u->out, at, why);
        }
        result = codec->step(u);
        if (u->out->size_bytes > 0 && u->out->bytes[0] != PICKLE_PROTO)
            return UNPACKED;
        if (result == STEP_MEMBER_ENDED) {
            if (only_zeros_left(u)) /* tapes and block devices pad so */
                return UNPACKED;
            fresh_member = true;
            continue;
        }
        if (result == STEP_WRONG && fresh_member && u->out->size_bytes == filled) {
            sentence_set(why, "at byte %zu: something else follows the %s data", at,
                         codec->called);
            return UNPACK_FAILED;
        }
        fresh_member = fresh_member && u->out->size_bytes == filled;
        if (result == STEP_WRONG)
            sentence_set(why, "at byte %zu: the %s data %s", u->at, codec->called, u->reason);
        else if (u->at == at && u->out->size_bytes == filled)
            sentence_set(why, "at byte %zu: the %s data ends too early", u->at, codec->called);
        else
            continue;
        return UNPACK_FAILED;
    }
}

enum unpack_result unpack(enum packing packing, const unsigned char *bytes, size_t size_bytes,
                          struct buffer *out, struct sentence *why) {
    const struct codec *codec = &codecs[packing];
    struct unpacking u = {.in = bytes, .in_bytes = size_bytes, .out = out};
    enum unpack_result result;

    if (!codec->open(&u)) {
        sentence_set(why, "not enough memory to unpack %s data", codec->called);
        codec->close(&u);
        return UNPACK_FAILED;
    }
    result = unpack_all(&u, codec, why);
    codec->close(&u);
    if (result == UNPACKED && out->size_bytes == 0) {
        sentence_set(why, "the %s data unpacks to nothing", codec->called);
        result = UNPACK_FAILED;
    }
    if (result == UNPACKED)
        buffer_trim(out);
    else
        buffer_free(out);
    return result;
}
