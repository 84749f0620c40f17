/* SPDX-License-Identifier: Apache-2.0 */
/* The directory that shared files live in. Unless $TIDEGATE_DIR names it, its path comes from the
 * user's number: a path from the session (XDG_RUNTIME_DIR) would be another one in a worker of the
 * same user, and then two ledgers would both believe that the card is theirs. */
#ifndef TG_BASE_SHMDIR_H
#define TG_BASE_SHMDIR_H

#include "base/forkguard.h"

/* dir, else $TIDEGATE_DIR, else /dev/shm/tidegate-UID; the caller frees it. Errors: -EINVAL (it is
 * not absolute), -ENOMEM. */
int tg__shmdir_path(const char *dir, char **path);

/* Opens it into the guard's slot; made if there is none and `may_make`. Errors: -EPERM (it is not
 * this user's alone, or no directory, or a link), -ENOENT (there is none), other -errno. */
int tg__shmdir_open(const char *path, bool may_make, struct tg__forkguard *guard, int slot);

#endif
