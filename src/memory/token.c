/* SPDX-License-Identifier: Apache-2.0 */
/* The name is abstract: no file is left over, and it is gone with the process. It lives in a
 * network namespace, which both processes must share. */
#include "memory/token.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/map.h"

enum { FORMAT = 1 };

_Static_assert(sizeof(struct tg__token) == TG_IPC_TOKEN_BYTES, "a token fills a handle");
_Static_assert(sizeof TG_IPC_MAGIC - 1 == sizeof((struct tg__token *)0)->magic, "as long");

/* Another process computes the same. */
static uint64_t sum_of(const struct tg__token *token) {
    uint64_t words[offsetof(struct tg__token, checksum) / sizeof(uint64_t)], sum = 1;

    memcpy(words, token, sizeof words);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        sum = tg__hash_u64(sum * 31 + words[i]);
    return sum;
}

void tg__token_seal(struct tg__token *token) {
    memcpy(token->magic, TG_IPC_MAGIC, sizeof token->magic);
    token->format = FORMAT;
    token->checksum = sum_of(token);
}

bool tg__token_is_whole(const struct tg__token *token) {
    return memcmp(token->magic, TG_IPC_MAGIC, sizeof token->magic) == 0 &&
           token->format == FORMAT && token->checksum == sum_of(token);
}

socklen_t tg__token_address(uint64_t agent, struct sockaddr_un *address) {
    int length;

    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    length = snprintf(address->sun_path + 1, sizeof address->sun_path - 1,
                      "tidegate-agent-%016" PRIx64, agent);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}
