/* SPDX-License-Identifier: Apache-2.0 */
#include "demo_hands.h"

#include "demo_content.h"
#include "demo_link.h"

/* Large enough that the copy's fixed cost does not count, a multiple of the content's words. */
#define STAGE_BYTES ((size_t)32 << 20)

void demo_hands_open(struct demo_hands *hands) {
    *hands = (struct demo_hands){.stage = NULL};
    demo_crew_open(&hands->crew);
}

int demo_hands_reach(struct demo_hands *hands, struct tg_device *device) {
    struct tg_device_info info;
    int status = tg_device_ops(device)->info(device, &info);

    if (status != 0 || (info.can & TG_DEVICE_DIRECT) != 0)
        return status;
    hands->device = device;
    return demo_link_pinned_make(device, STAGE_BYTES, &hands->stage);
}

void demo_hands_close(struct demo_hands *hands) {
    demo_crew_close(&hands->crew);
    demo_link_pinned_drop(hands->device, hands->stage, STAGE_BYTES);
}

/* A piece that fits the stage. */
static uint64_t piece_do(struct demo_hands *hands, enum demo_task task, void *at,
                         size_t size_bytes, uint64_t key) {
    uint64_t lost_bytes = 0;

    if (task != DEMO_FILL)
        hands->status = demo_link_copy(hands->device, hands->stage, at, size_bytes);
    if (hands->status == 0)
        lost_bytes = demo_crew_do(&hands->crew, task, hands->stage, size_bytes, key);
    if (task == DEMO_FILL)
        hands->status = demo_link_copy(hands->device, at, hands->stage, size_bytes);
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
