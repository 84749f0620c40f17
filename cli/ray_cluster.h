/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a Ray cluster already runs that a program started here would join: the workers of such a
 * cluster have the environment that it was started with, not the program's. */
#ifndef CLI_RAY_CLUSTER_H
#define CLI_RAY_CLUSTER_H

#include <stdbool.h>

#include "say.h"

/* True: *sign says by what it is seen. */
bool ray_cluster_seen(struct sentence *sign);

#endif
