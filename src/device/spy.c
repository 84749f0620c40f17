/* SPDX-License-Identifier: Apache-2.0 */
/* Records every call when it has returned. Of many threads' calls, the order is that of their
 * returns. */
#include "device/spy.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/vec.h"
#include "device/wrap.h"

struct spy {
    struct tg__wrap wrap;  /* first */
    pthread_mutex_t mutex; /* guards all below */
    struct tg__vec calls;  /* of struct tg__spy_call */
    size_t running;        /* calls that will want room */
};

/* Room is made before the call: what is not recorded is not done. */
static int spy_before(struct tg__wrap *wrap, struct tg__wrap_call *call) {
    struct spy *spy = (struct spy *)wrap;
    int rc;

    (void)call;
    pthread_mutex_lock(&spy->mutex);
    rc = tg__vec_room(&spy->calls, spy->running + 1);
    spy->running += rc == 0;
    pthread_mutex_unlock(&spy->mutex);
    return rc;
}

static void spy_after(struct tg__wrap *wrap, const struct tg__wrap_call *call, int status) {
    struct spy *spy = (struct spy *)wrap;
    struct tg__spy_call *calls;

    pthread_mutex_lock(&spy->mutex);
    calls = spy->calls.items;
    spy->running--;
    calls[spy->calls.count++] = (struct tg__spy_call){.op = call->op,
                                                      .status = status,
                                                      .addr = call->addr,
                                                      .size_bytes = call->size_bytes,
                                                      .chunk = call->chunk};
    pthread_mutex_unlock(&spy->mutex);
}

static void spy_close(struct tg_device *device) {
    struct spy *spy = (struct spy *)device;

    spy->wrap.inner->close(spy->wrap.inner);
    tg__vec_free(&spy->calls);
    free(spy);
}

int tg__spy_wrap(struct tg_device *inner, struct tg_device **device) {
    struct spy *spy = calloc(1, sizeof *spy);

    if (spy == NULL)
        return tg__fail_memory();
    tg__wrap_init(&spy->wrap, inner);
    spy->wrap.before = spy_before;
    spy->wrap.after = spy_after;
    spy->wrap.device.close = spy_close;
    tg__vec_init(&spy->calls, sizeof(struct tg__spy_call), NULL);
    pthread_mutex_init(&spy->mutex, NULL);
    *device = &spy->wrap.device;
    return 0;
}

const struct tg__spy_call *tg__spy_calls(struct tg_device *device, size_t *count) {
    struct spy *spy = (struct spy *)device;
    const struct tg__spy_call *calls;

    pthread_mutex_lock(&spy->mutex);
    calls = spy->calls.items;
    *count = spy->calls.count;
    pthread_mutex_unlock(&spy->mutex);
    return calls;
}

void tg__spy_clear(struct tg_device *device) {
    struct spy *spy = (struct spy *)device;

    pthread_mutex_lock(&spy->mutex);
    spy->calls.count = 0;
    pthread_mutex_unlock(&spy->mutex);
}
