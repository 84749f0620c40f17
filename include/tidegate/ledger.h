/* SPDX-License-Identifier: Apache-2.0 */
/* The ledger: one shared file for each node and user in which the programs that share devices write
 * down who occupies which bytes, who sleeps and who waits. Numbers only: it knows no handle and no
 * device; the driver's figures come in through a gauge of the caller's.
 *
 * It promises: what tenants occupy and have reserved never exceeds a device's total; requests are
 * served in order of arrival; nobody waits for the dead, and for the stopped or late no longer than
 * a moment; a process may die at any instruction. It never signals anybody and never trusts a pid.
 * A request ends at its deadline; only while a process is stopped inside the file's lock, up to
 * 10 ms later, and one that does not wait at all after up to 95 ms, with TG_EHELD.
 *
 * Where: the directory /dev/shm/tidegate-UID, or $TIDEGATE_DIR; it must be this user's, of mode
 * 0700 and no link. Errors of every function: TG_EHELD (its lock is held by NAME, who does not
 * run), TG_EPOISONED, TG_EREPLACED (the file is not the one that was joined; go on alone),
 * TG_EFORKED. */
#ifndef TIDEGATE_LEDGER_H
#define TIDEGATE_LEDGER_H

#include <stdint.h>

#include <tidegate/tidegate.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    TG_LEDGER_DEVICES = 16,
    TG_LEDGER_TENANTS = 64,
    TG_TENANT_TAGS = 16,
    TG_TENANT_NAME_BYTES = 48, /* with the ending 0, as the others */
    TG_TENANT_ROLE_BYTES = 16,
    TG_TENANT_SEAMS_BYTES = 48,
    TG_TAG_NAME_BYTES = 32
};

/* What a tenant's seams do. It never governs a call that its user wrote. */
enum tg_mode { TG_MODE_NONE, TG_MODE_OFF, TG_MODE_OBSERVE, TG_MODE_ON };

struct tg_ledger;
struct tg_tenant; /* one process on one device */

/* ---- who holds what: for readers ------------------------------------------------------------- */

struct tg_tag_view {
    char name[TG_TAG_NAME_BYTES];
    uint64_t occupied_bytes;   /* on the device; with what is declared */
    uint64_t returnable_bytes; /* of these: could be given back now, as was declared */
    uint64_t reserved_bytes;   /* granted, not yet committed */
    uint64_t asleep_bytes;     /* would be occupied if it woke */
    uint64_t host_bytes;       /* host copies */
};

struct tg_tenant_view {
    char name[TG_TENANT_NAME_BYTES];
    char role[TG_TENANT_ROLE_BYTES];
    int32_t rank;        /* -1: none */
    int32_t pid;         /* in the tenant's own pid namespace: for display alone */
    uint32_t device;     /* index into devices */
    uint32_t id;         /* of its process's ledger: see tg_tenant_id */
    uint32_t mode;       /* enum tg_mode; as it noted, as the next two */
    uint32_t is_starting; /* up */
    char seams[TG_TENANT_SEAMS_BYTES];
    uint64_t asked_bytes; /* a peer has asked it for so many, and it has not looked yet */
    uint32_t is_dead;    /* gone, its bytes not yet back: occupied_bytes of its tags are orphaned */
    uint32_t is_waiting; /* the next four say for what */
    char wait_tag[TG_TAG_NAME_BYTES];
    uint64_t wait_bytes;
    uint64_t wait_since_ns; /* CLOCK_MONOTONIC, as all times here */
    uint64_t arrival;       /* order among the waiters of a device */
    uint64_t updated_ns;    /* when its figures were last written */
    uint32_t tag_count;
    struct tg_tag_view tags[TG_TENANT_TAGS];
};

struct tg_device_view {
    uint8_t uuid[16];
    char name[64];
    uint64_t total_bytes, free_bytes; /* as the driver last said to one of the tenants */
    uint64_t measured_ns;             /* when; 0: never */
    uint64_t unattributed_bytes;      /* used beyond what tenants occupy, at that time */
};

/* About 100 KB: allocate it. */
struct tg_node_view {
    uint64_t now_ns;
    uint64_t host_bytes; /* reserved by all tenants for host copies */
    uint32_t device_count, tenant_count;
    struct tg_device_view devices[TG_LEDGER_DEVICES];
    struct tg_tenant_view tenants[TG_LEDGER_TENANTS];
};

/* Opens the node's ledger, and makes it if there is none. dir NULL: as above. Errors: -EPERM (the
 * directory is not ours alone), TG_ELAYOUT (made by a build with another layout), -ENOSPC and other
 * failures of files. */
TG_API TG_MUST_USE int tg_ledger_open(const char *dir, struct tg_ledger **ledger);
/* The same for a reader: makes nothing. Errors: -ENOENT when there is none; as above. */
TG_API TG_MUST_USE int tg_ledger_open_reader(const char *dir, struct tg_ledger **ledger);
/* Tenants of this ledger have left. NULL is allowed. */
TG_API void tg_ledger_close(struct tg_ledger *ledger);
/* Reads everything: each tenant's figures are of one moment, different tenants' nearly so. Takes no
 * lock, joins nothing, at most 10 ms. Errors: TG_EMOTION when a tenant's figures changed through
 * 100 tries. */
TG_API TG_MUST_USE int tg_ledger_read(struct tg_ledger *ledger, struct tg_node_view *view);

/* What others have asleep on a device under these tags (names with commas between; NULL: all), and
 * by how much the device's free memory is short of it, where what tenants have reserved is not
 * free. self: a tg_tenant_id, left out; 0: none. Pure: a caller that knows a later figure of the
 * driver's writes it into its view before. Errors: -EINVAL (an empty name in tags), -ENOENT (the
 * view has no such device). */
TG_API TG_MUST_USE int tg_reclaim_target(const struct tg_node_view *view, const uint8_t *uuid,
                                         const char *tags, uint32_t self, uint64_t *asleep_bytes,
                                         uint64_t *short_bytes);

/* ---- tenants --------------------------------------------------------------------------------- */

/* Asks the driver; called without any lock held, in the calling thread. 0 or a negative status. */
typedef int (*tg_gauge_fn)(void *argument, uint64_t *free_bytes, uint64_t *total_bytes);

struct tg_gauge {
    tg_gauge_fn ask;
    void *argument;
};

struct tg_tenant_params {
    const char *name; /* "trainer"; printable, up to 47 bytes */
    const char *role; /* "trainer", "rollout", …; NULL: none */
    int32_t rank;     /* -1: none */
    const uint8_t *uuid;     /* of the device, 16 bytes */
    const char *device_name; /* for people; NULL: none */
    struct tg_gauge gauge;   /* used while the tenant is joined */
};

/* Why a reservation failed, as numbers; the sentence is in tg_last_error. */
struct tg_shortfall {
    int status; /* TG_ENOFIT, TG_ENEVERFITS, TG_ECYCLE, TG_ESTARTING; 0: the last one succeeded */
    uint64_t asked_bytes, available_bytes, missing_bytes;
    char holder[TG_TENANT_NAME_BYTES + TG_TENANT_ROLE_BYTES]; /* who holds most of it; may be "" */
    char tag[TG_TAG_NAME_BYTES];
    uint64_t holder_bytes, unattributed_bytes, orphaned_bytes;
};

/* Joins: takes a slot, kept alive by a lock that the kernel drops when the process ends, execs or
 * dies. Where the last places are those of dead ones, waits for one up to 2 s. Errors: -EINVAL,
 * TG_EFULL. A forked child has not joined: its calls answer TG_EFORKED. */
TG_API TG_MUST_USE int tg_ledger_join(struct tg_ledger *ledger,
                                      const struct tg_tenant_params *params,
                                      struct tg_tenant **tenant);
/* Everything it held counts as given. NULL is allowed. */
TG_API void tg_tenant_leave(struct tg_tenant *tenant);
/* Whether the ledger that was joined is still the node's: asked at every wake. Errors:
 * TG_EREPLACED, TG_EPOISONED, TG_EFORKED: go on alone. */
TG_API TG_MUST_USE int tg_tenant_check(struct tg_tenant *tenant);
/* Tells its process's ledger from others in views: never 0, never given again. */
TG_API uint32_t tg_tenant_id(const struct tg_tenant *tenant);

/* Reserves bytes of the device for a tag, and waits for them up to wait_ms, in order of arrival:
 * nobody who came later is served first, except a tenant that holds what the earlier ones wait
 * for. What is reserved is either committed or cancelled. Errors: TG_ENOFIT (not in time: who holds
 * it is in tg_tenant_shortfall), TG_ENEVERFITS (more than the device has beside what this tenant
 * holds itself), TG_ECYCLE (each of several tenants waits for what another waiting one holds), both
 * at once; TG_ESTARTING (a peer had others keep still all the time: enum tg_start; only where it
 * waits); -EINVAL; TG_EFULL (more tags than fit). Who has to wait asks its peers as tg_tenant_ask
 * does. Cost: about 1 µs when nobody waits. */
TG_API TG_MUST_USE int tg_tenant_reserve(struct tg_tenant *tenant, const char *tag,
                                         uint64_t size_bytes, uint32_t wait_ms);
/* The same for several tags as one request: all of it or nothing, so that two who need several tags
 * each do not take half and wait for the other half. count: 1 to TG_TENANT_TAGS. The wait and the
 * sentence name the largest share's tag. */
struct tg_share {
    const char *tag;
    uint64_t size_bytes;
};
TG_API TG_MUST_USE int tg_tenant_reserve_all(struct tg_tenant *tenant,
                                             const struct tg_share *shares, uint32_t count,
                                             uint32_t wait_ms);
/* Of no tenant (NULL), and in a forked child, all zero. */
TG_API void tg_tenant_shortfall(const struct tg_tenant *tenant, struct tg_shortfall *shortfall);
/* What was reserved is now occupied; the asleep bytes of the tag shrink by `woken_bytes`. Cannot
 * fail: a store in the tenant's own slot. */
TG_API void tg_tenant_commit(struct tg_tenant *tenant, const char *tag, uint64_t size_bytes,
                             uint64_t woken_bytes);
/* Takes a reservation back. Cannot fail. */
TG_API void tg_tenant_cancel(struct tg_tenant *tenant, const char *tag, uint64_t size_bytes);
/* Occupied bytes are the device's again; of these `asleep_bytes` will come back when the tag wakes.
 * Call it after the memory is unmapped and released. Cannot fail, takes no lock, wakes waiters. */
TG_API void tg_tenant_give(struct tg_tenant *tenant, const char *tag, uint64_t size_bytes,
                           uint64_t asleep_bytes);
/* A sleeping block was freed: it will not come back. Cannot fail. */
TG_API void tg_tenant_forget(struct tg_tenant *tenant, const char *tag, uint64_t asleep_bytes);

/* ---- programs with an allocator of their own ------------------------------------------------- */

/* Memory that another allocator of this process holds, in absolute figures: all of it, and what of
 * this it could give back now. torch's: "live" and "cached". It is in the driver's figures already,
 * so nothing is reserved; it tells who holds it, counts as held by this tenant, and no longer as
 * unattributed. Of what lies in a memory's tag, and is charged so, occupied_bytes is 0; what of the
 * tag could be given back may be said all the same, and is told as far as the tag holds so much.
 * An old figure keeps nobody from memory that the driver says is free. Cannot fail: a store in the
 * tenant's own slot, which wakes waiters when the figure has fallen. A tag for which there is no
 * place, or whose name is none, is left out. */
TG_API void tg_tenant_declare(struct tg_tenant *tenant, const char *tag, uint64_t occupied_bytes,
                              uint64_t returnable_bytes);
/* Asks the driver and writes down for readers what it says, and what is unattributed: after a
 * declare, since only reservations do it by themselves. Takes the file's lock, waits up to 10 ms
 * for it. Errors: TG_EHELD, TG_EMOTION, the gauge's. */
TG_API TG_MUST_USE int tg_tenant_measure(struct tg_tenant *tenant);

/* Why others keep still. */
enum tg_start {
    TG_START_NONE,
    TG_START_UP,    /* sizes itself by the device's free memory, which must neither fall nor rise:
                     * others' requests that may wait do, up to their deadlines, and so do their
                     * sleeps (tg_tenant_check_quiet) */
    TG_START_GIVING /* gives memory back and measures what: free memory must not fall, so others'
                     * requests that may wait do; their sleeps do not, else two that give at once
                     * would wait for each other */
};

/* What a tenant says of itself. A dead one does not start. */
struct tg_tenant_note {
    uint32_t mode;        /* enum tg_mode */
    uint32_t is_starting; /* enum tg_start */
    char seams[TG_TENANT_SEAMS_BYTES]; /* for people: "verl 0.9.1: 4 of 4"; may be "" */
};
/* Cannot fail: a store in the tenant's own slot. */
TG_API void tg_tenant_note(struct tg_tenant *tenant, const struct tg_tenant_note *note);
/* Waits up to wait_ms until no other tenant of the device is starting up: asked before memory is
 * given back or taken in bulk. Errors: TG_ESTARTING, with its name. */
TG_API TG_MUST_USE int tg_tenant_check_quiet(struct tg_tenant *tenant, uint32_t wait_ms);

/* Asks every other tenant of the device that has something returnable for up to so many bytes, and
 * counts them. It sets a figure in their slots, no more: each serves it where its own thread comes
 * by, or does not; until then it stands in their view as asked_bytes. */
TG_API TG_MUST_USE int tg_tenant_ask(struct tg_tenant *tenant, uint64_t size_bytes,
                                     uint32_t *asked_count);
/* How many bytes peers have asked for since the last call; 0: none. The caller gives back what is
 * still short then (tg_reclaim_target). Cheap enough for every step. */
TG_API uint64_t tg_tenant_asked(struct tg_tenant *tenant);

/* ---- host memory ----------------------------------------------------------------------------- */

/* Host memory for copies: reserves from the node's budget, which is the least of MemAvailable, the
 * headroom of every cgroup above this process and the option TIDEGATE_HOST_BYTES, less a margin and
 * what tenants have reserved and not yet touched. Never waits. Errors: TG_EHOSTMEMORY. tenant may
 * be NULL: a process alone. */
TG_API TG_MUST_USE int tg_tenant_host_reserve(struct tg_tenant *tenant, const char *tag,
                                              uint64_t size_bytes);
/* The reserved memory has been touched: from now on the system's own figures know it. */
TG_API void tg_tenant_host_commit(struct tg_tenant *tenant, const char *tag, uint64_t size_bytes);
/* Reserved (is_committed 0) or touched host memory is given back. Cannot fail. */
TG_API void tg_tenant_host_give(struct tg_tenant *tenant, const char *tag, uint64_t size_bytes,
                                int is_committed);

#ifdef __cplusplus
}
#endif

#endif
