/* SPDX-License-Identifier: Apache-2.0 */
/* Which devices were given access to what is mapped. Threads of this process may touch all of it,
 * once one device may: who else may is only remembered, and told. */
#include <pthread.h>
#include <stdlib.h>

#include "standin.h"

struct mapping {
    struct mapping *next;
    uint64_t addr, size_bytes, devices;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* guards the list */
static struct mapping *mappings;

static int is_within(const struct mapping *mapping, uint64_t addr, uint64_t size_bytes) {
    return mapping->addr >= addr && mapping->size_bytes <= size_bytes &&
           mapping->addr - addr <= size_bytes - mapping->size_bytes;
}

void standin_access_begin(uint64_t addr, uint64_t size_bytes) {
    struct mapping *made = calloc(1, sizeof *made);

    if (made == NULL)
        return;
    made->addr = addr;
    made->size_bytes = size_bytes;
    pthread_mutex_lock(&mutex);
    made->next = mappings;
    mappings = made;
    pthread_mutex_unlock(&mutex);
}

void standin_access_end(uint64_t addr, uint64_t size_bytes) {
    struct mapping **at = &mappings;

    pthread_mutex_lock(&mutex);
    while (*at != NULL) {
        struct mapping *mapping = *at;

        if (is_within(mapping, addr, size_bytes)) {
            *at = mapping->next;
            free(mapping);
        } else {
            at = &mapping->next;
        }
    }
    pthread_mutex_unlock(&mutex);
}

/* As the driver's, this adds to what was given. */
void standin_access_give(uint64_t addr, uint64_t size_bytes, uint64_t devices) {
    pthread_mutex_lock(&mutex);
    for (struct mapping *mapping = mappings; mapping != NULL; mapping = mapping->next) {
        if (is_within(mapping, addr, size_bytes))
            mapping->devices |= devices;
    }
    pthread_mutex_unlock(&mutex);
}

int cuMemGetAccess(unsigned long long *flags, const struct tg__culocation *location,
                   unsigned long long addr) {
    const struct mapping *found = NULL;
    int result = standin_begin();

    if (result != 0)
        return result;
    if (standin_device(location->id) == NULL)
        return TG__CU_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&mutex);
    for (const struct mapping *mapping = mappings; mapping != NULL; mapping = mapping->next) {
        if (addr >= mapping->addr && addr - mapping->addr < mapping->size_bytes)
            found = mapping;
    }
    if (found != NULL)
        *flags = (found->devices >> location->id & 1) != 0 ? TG__CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                                                           : 0;
    pthread_mutex_unlock(&mutex);
    return found == NULL ? TG__CU_ERROR_INVALID_VALUE : 0;
}
