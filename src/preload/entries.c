/* SPDX-License-Identifier: Apache-2.0 */
/* What a program gets for the driver's functions by which it maps memory itself. A page's number is
 * ours, and a range is ours where we have reserved it; everything else is the driver's. */
#include "preload/entries.h"

#include <errno.h>
#include <stdatomic.h>

#include "base/log.h"

/* The driver's numbers. */
enum {
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NOT_SUPPORTED = 801,
    UNKNOWN = 999,
    PINNED = 1,
    ON_DEVICE = 1,
    READ_WRITE = 3,
    DESCRIPTOR = 1 /* the kind of handle that we carry */
};

typedef const struct tg__library *library_ptr;

/* NULL: nothing can be ours. */
static library_ptr used(void) {
    return tg__library_opened();
}

static bool is_page(unsigned long long handle) {
    return (handle & TG_PAGE_BIT) != 0;
}

static int result_of(library_ptr library, int status) {
    int native;

    if (tg__is_out_of_memory(status))
        return OUT_OF_MEMORY;
    switch (status) {
    case 0:
        return 0;
    case -ENOMEM:
        return OUT_OF_MEMORY;
    case TG_EFORKED:
        return NOT_INITIALIZED;
    case -EINVAL:
    case -ENOENT:
        return INVALID_VALUE;
    default:
        native = library->last_error()->native;
        return native > 0 ? native : UNKNOWN;
    }
}

/* ---- addresses ------------------------------------------------------------------------------- */

int tg__entry_reserve(unsigned long long *addr, size_t size_bytes, size_t alignment,
                      unsigned long long wanted, unsigned long long flags) {
    const void *caller = TG__CALLER();
    library_ptr library = tg__library_open();
    tg__current_device_fn current_device;
    uint64_t reserved;
    int device = 0;

    if (library == NULL || addr == NULL || alignment != 0 || wanted != 0 || flags != 0)
        return TG__DRIVER(reserve)(addr, size_bytes, alignment, wanted, flags);
    current_device = TG__NEXT(current_device);
    if (current_device == NULL || current_device(&device) != 0 ||
        library->pages_reserve(device, size_bytes, &reserved) != 0)
        return TG__DRIVER(reserve)(addr, size_bytes, alignment, wanted, flags);
    *addr = reserved;
    return 0;
}

int tg__entry_unreserve(unsigned long long addr, size_t size_bytes) {
    library_ptr library = used();
    int rc = library == NULL ? -ENOENT : library->pages_unreserve(addr, size_bytes);

    return rc == -ENOENT ? TG__DRIVER(unreserve)(addr, size_bytes) : result_of(library, rc);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* What a tag can have. */
static uint32_t flags_of(const struct tg__entry_prop *prop) {
    if ((prop->handle_types & ~DESCRIPTOR) != 0 || prop->compression != 0 || prop->usage != 0)
        return TG_PAGE_OTHER;
    return (prop->handle_types != 0 ? TG_CHUNK_EXPORTABLE : 0) | (prop->rdma ? TG_CHUNK_RDMA : 0);
}

/* True: answered, with *result. */
static bool create(unsigned long long *handle, size_t size_bytes,
                   const struct tg__entry_prop *prop, int *result) {
    static atomic_flag has_warned = ATOMIC_FLAG_INIT;
    library_ptr library = tg__library_open();
    struct tg_process_request request = {.size_bytes = size_bytes, .device = prop->place.number,
                                         .usual_tag = tg__mode_default_tag()};
    uint64_t page = 0;
    int rc;

    if (library == NULL)
        return false;
    rc = library->page_create(&request, flags_of(prop), &page);
    if (rc == -ENOTSUP && (flags_of(prop) & TG_PAGE_OTHER) != 0) {
        *result = NOT_SUPPORTED;
        return true;
    }
    *result = result_of(library, rc);
    if (rc == 0)
        *handle = page;
    if (*result == OUT_OF_MEMORY)
        tg__refusal_note(library, &request);
    if (rc == 0 || *result == OUT_OF_MEMORY)
        return rc != 0 || page != 0;
    if (!tg__is_runtimes(rc))
        tg__warn_once(&has_warned, "the driver is asked for memory that will not sleep: %.300s",
                      library->last_error()->text);
    return false;
}

int tg__entry_create(unsigned long long *handle, size_t size_bytes,
                     const struct tg__entry_prop *prop, unsigned long long flags) {
    unsigned long long page;
    int result;

    if (handle == NULL || prop == NULL || flags != 0 || prop->type != PINNED ||
        prop->place.type != ON_DEVICE || !create(&page, size_bytes, prop, &result))
        return TG__DRIVER(create)(handle, size_bytes, prop, flags);
    if (result == 0)
        *handle = page;
    return result;
}

int tg__entry_release(unsigned long long handle) {
    library_ptr library = used();

    if (library == NULL || !is_page(handle))
        return TG__DRIVER(release)(handle);
    return result_of(library, library->page_release(handle));
}

/* The page does not sleep from now on, and the driver knows it by this handle. A result. */
static int hold(unsigned long long *handle) {
    library_ptr library = used();
    uint64_t native;
    int result;

    if (library == NULL || !is_page(*handle))
        return 0;
    result = result_of(library, library->page_hold(*handle, &native));
    if (result == 0)
        *handle = native;
    return result;
}

/* ---- mappings -------------------------------------------------------------------------------- */

int tg__entry_map(unsigned long long addr, size_t size_bytes, size_t offset,
                  unsigned long long handle, unsigned long long flags) {
    static atomic_flag has_warned = ATOMIC_FLAG_INIT;
    library_ptr library = used();
    int rc = -ENOTSUP, result = 0;

    if (library != NULL && is_page(handle)) {
        if (offset == 0 && flags == 0)
            rc = library->page_map(handle, addr, size_bytes);
        if (rc != -ENOTSUP)
            return result_of(library, rc);
        tg__warn_once(&has_warned, "memory that is mapped in another way than torch does will not "
                                   "sleep");
        result = hold(&handle);
    }
    return result != 0 ? result
                       : TG__DRIVER(map)(addr, size_bytes, offset, handle, flags);
}

int tg__entry_unmap(unsigned long long addr, size_t size_bytes) {
    library_ptr library = used();
    int rc = library == NULL ? -ENOENT : library->pages_unmap(addr, size_bytes);

    return rc == -ENOENT ? TG__DRIVER(unmap)(addr, size_bytes) : result_of(library, rc);
}

/* False: some access is other than all of a device's. */
static bool list_devices(const struct tg__entry_access *access, size_t count, uint64_t *devices) {
    *devices = 0;
    for (size_t i = 0; i < count; i++) {
        if (access[i].flags != READ_WRITE || access[i].place.type != ON_DEVICE ||
            access[i].place.number < 0 || access[i].place.number > 63)
            return false;
        *devices |= UINT64_C(1) << access[i].place.number;
    }
    return true;
}

int tg__entry_set_access(unsigned long long addr, size_t size_bytes,
                         const struct tg__entry_access *access, size_t count) {
    library_ptr library = used();
    uint64_t devices;
    int rc = -ENOENT;

    if (library != NULL && access != NULL && list_devices(access, count, &devices))
        rc = library->pages_access(addr, size_bytes, devices);
    else if (library != NULL)
        rc = library->pages_hold(addr, size_bytes) == TG_EASLEEP ? TG_EASLEEP : -ENOENT;
    return rc == -ENOENT ? TG__DRIVER(set_access)(addr, size_bytes, access, count)
                         : result_of(library, rc);
}

/* ---- what others may know of it -------------------------------------------------------------- */

int tg__entry_export(void *shared, unsigned long long handle, int type, unsigned long long flags) {
    int result = hold(&handle);

    return result != 0 ? result : TG__DRIVER(export)(shared, handle, type, flags);
}

int tg__entry_properties(struct tg__entry_prop *prop, unsigned long long handle) {
    int result = hold(&handle);

    return result != 0 ? result : TG__DRIVER(properties)(prop, handle);
}

int tg__entry_retain(unsigned long long *handle, void *addr) {
    library_ptr library = used();
    uint64_t at = (uint64_t)(uintptr_t)addr;
    int rc = library == NULL ? 0 : library->pages_hold(at, 1);

    if (rc == TG_EASLEEP)
        return OUT_OF_MEMORY;
    return TG__DRIVER(retain)(handle, addr);
}

int tg__entry_bind(unsigned long long object, size_t object_offset, unsigned long long handle,
                   size_t offset, size_t size_bytes, unsigned long long flags) {
    int result = hold(&handle);

    return result != 0
               ? result
               : TG__DRIVER(bind)(object, object_offset, handle, offset, size_bytes, flags);
}
