/* SPDX-License-Identifier: Apache-2.0 */
#include "demo_hands.h"

#include <errno.h>
#include <sys/mman.h>

#include "demo_content.h"

/* Large enough that the copy's fixed cost does not count, a multiple of the content's words. */
#define STAGE_BYTES ((size_t)32 << 20)

/* The device is ours alone or nearly so: what has not been copied by then never will be. */
#define COPY_WAIT_MS 20000

void demo_hands_open(struct demo_hands *hands) {
    *hands = (struct demo_hands){.stage = NULL};
    demo_crew_open(&hands->crew);
}

int demo_hands_reach(struct demo_hands *hands, struct tg_device *device) {
    const struct tg_device_ops *ops = tg_device_ops(device);
    struct tg_device_info info;
    int status = ops->info(device, &info);

    if (status != 0 || (info.can & TG_DEVICE_DIRECT) != 0)
        return status;
    hands->device = device;
    hands->stage = mmap(NULL, STAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                        0);
    if (hands->stage == MAP_FAILED) {
        hands->stage = NULL;
        return -ENOMEM;
    }
    status = ops->pin(device, hands->stage, STAGE_BYTES, 1);
    hands->is_pinned = status == 0;
    return status;
}

void demo_hands_close(struct demo_hands *hands) {
    demo_crew_close(&hands->crew);
    if (hands->stage == NULL)
        return;
    /* Memory that stays pinned stays mapped, too. */
    if (!hands->is_pinned ||
        tg_device_ops(hands->device)->pin(hands->device, hands->stage, STAGE_BYTES, 0) == 0)
        munmap(hands->stage, STAGE_BYTES);
}

/* Copies, and waits until it is done. */
static int carry(struct demo_hands *hands, void *to, const void *from, size_t size_bytes) {
    const struct tg_device_ops *ops = tg_device_ops(hands->device);
    struct tg_fence fence;
    int status = ops->copy(hands->device, to, from, size_bytes, NULL);

    if (status == 0)
        status = ops->fence(hands->device, NULL, &fence);
    return status != 0 ? status : ops->wait(hands->device, &fence, COPY_WAIT_MS);
}

/* A piece that fits the stage. */
static uint64_t piece_do(struct demo_hands *hands, enum demo_task task, void *at,
                         size_t size_bytes, uint64_t key) {
    uint64_t lost_bytes = 0;

    if (task != DEMO_FILL)
        hands->status = carry(hands, hands->stage, at, size_bytes);
    if (hands->status == 0)
        lost_bytes = demo_crew_do(&hands->crew, task, hands->stage, size_bytes, key);
    if (task == DEMO_FILL)
        hands->status = carry(hands, at, hands->stage, size_bytes);
    return lost_bytes;
}

uint64_t demo_hands_do(struct demo_hands *hands, enum demo_task task, void *at, size_t size_bytes,
                       uint64_t key) {
    uint64_t lost_bytes = 0;

    if (hands->stage == NULL)
        return demo_crew_do(&hands->crew, task, at, size_bytes, key);
    if (task == DEMO_TOUCH) /* the device's memory is there as soon as it is mapped */
        return 0;
    for (size_t done = 0; done < size_bytes && hands->status == 0;) {
        size_t piece = size_bytes - done < STAGE_BYTES ? size_bytes - done : STAGE_BYTES;

        lost_bytes += piece_do(hands, task, (unsigned char *)at + done, piece,
                               demo_content_key_at(key, done));
        done += piece;
    }
    return lost_bytes;
}
