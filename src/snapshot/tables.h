/* SPDX-License-Identifier: Apache-2.0 */
/* What a parsed snapshot holds: flat tables that refer to each other by number. Places, pools and
 * contexts are interned; number 0 is the default pool, and the context that says nothing. */
#ifndef TG_SNAPSHOT_TABLES_H
#define TG_SNAPSHOT_TABLES_H

#include "snapshot/places.h"

#define TG__DEVICES_MAX 128 /* torch numbers devices with a signed byte */

struct tg__pool {
    uint64_t id[2];
};

/* struct tg_context, by number. */
struct tg__context {
    uint64_t stream;
    uint32_t pool, user_metadata, compile_context;
};

struct tg_snapshot {
    struct tg__budget budget;
    uint32_t protocol;
    bool is_list;
    struct tg__places places;        /* texts are lent from the caller's bytes */
    struct tg__interned pools;       /* struct tg__pool */
    struct tg__interned contexts;    /* struct tg__context */
    struct tg__vec events;           /* struct tg_event, in the order of the file */
    struct tg__vec traces;           /* struct tg__range in events, by device; they ascend */
    struct tg__vec segments, blocks; /* struct tg_segment, tg_block */
    struct tg__vec annotations;      /* struct tg_annotation */
    uint32_t recent_context;
};

/* What a known text becomes: a key, an action, a state, ... */
enum tg__word {
    TG__NO_WORD,
#define KEY(name, text) TG__KEY_##name,
#define VALUE(name, text, word)
#include "snapshot/words.def"
#undef KEY
#undef VALUE
    TG__KEY_COUNT,
    TG__WORD_ACTION = 0x100, /* + enum tg_action */
    TG__WORD_STATE = 0x200,  /* + enum tg_block_state */
    TG__WORD_END = 0x300,
    TG__WORD_LARGE = 0x301
};

/* The numbers of the known texts. */
enum tg__known_text {
    TG__TEXT_EMPTY,
#define KEY(name, text) TG__TEXT_##name,
#define VALUE(name, text, word) TG__TEXT_##name,
#include "snapshot/words.def"
#undef KEY
#undef VALUE
    TG__TEXT_COUNT
};

extern const uint16_t tg__text_words[TG__TEXT_COUNT];

static inline enum tg__word tg__text_word(uint32_t text) {
    return text < TG__TEXT_COUNT ? (enum tg__word)tg__text_words[text] : TG__NO_WORD;
}

/* Sets up empty tables whose growth is bounded by budget_bytes. Errors: -ENOMEM, TG_ELIMIT; free
 * then, too. */
int tg__tables_init(struct tg_snapshot *snapshot, size_t budget_bytes);
void tg__tables_free(struct tg_snapshot *snapshot);
/* After reading: gives the tables' unused capacity and the search indices back. */
void tg__tables_settle(struct tg_snapshot *snapshot);

/* Errors of both: -ENOMEM, TG_ELIMIT. */
int tg__intern_pool(struct tg_snapshot *snapshot, uint64_t a, uint64_t b, uint32_t *number);
int tg__intern_context(struct tg_snapshot *snapshot, const struct tg__context *context,
                       uint32_t *number);

#endif
