/* SPDX-License-Identifier: Apache-2.0 */
/* What goes between an opener and an agent, and by which name an agent is reached. Pure. */
#ifndef TG_MEMORY_TOKEN_H
#define TG_MEMORY_TOKEN_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <tidegate/ipc.h>

/* The 64 bytes of a handle. */
struct tg__token {
    char magic[8];
    uint32_t format;
    uint32_t pid;        /* the exporter's, where it lives; for people */
    uint64_t agent;      /* drawn by the exporter's process: no other has it, now or later */
    uint64_t unused;     /* 0 */
    uint64_t addr;       /* of the block, in the exporter */
    uint64_t generation; /* of the process's blocks with a token no other has it */
    uint64_t size_bytes; /* of its chunk */
    uint64_t checksum;
};

enum tg__request_kind { TG__REQUEST_OPEN = 1, TG__REQUEST_CLOSE = 2 };

struct tg__request {
    uint32_t kind, unused;
    struct tg__token token;
};

/* To an open; with the chunk's descriptor where the status is 0. */
struct tg__reply {
    int32_t status;
    uint32_t unused;
    uint64_t generation;
    uint64_t size_bytes;
};

/* Magic, format and checksum. */
void tg__token_seal(struct tg__token *token);
bool tg__token_is_whole(const struct tg__token *token);
/* Returns the address's length. */
socklen_t tg__token_address(uint64_t agent, struct sockaddr_un *address);

#endif
