/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of an actor: the process that holds memory and carries orders out. */
#ifndef TEST_MULTI_PERFORMER_H
#define TEST_MULTI_PERFORMER_H

#include "actor.h"

/* Opens everything, says so over the socket, and obeys until it is told to leave or the socket
 * ends. Never returns. */
_Noreturn void performer_run(const struct actor_params *params, int socket);

#endif
