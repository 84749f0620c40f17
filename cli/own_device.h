/* SPDX-License-Identifier: Apache-2.0 */
/* Host devices that one run of the command makes for itself: no other program can be in its way,
 * nor it in theirs. A host device is a file beside the ledger; the library keeps it, since it
 * cannot know who will come back to it. To these nobody will. */
#ifndef CLI_OWN_DEVICE_H
#define CLI_OWN_DEVICE_H

#include <stdbool.h>
#include <stddef.h>

#define OWN_DEVICE_BYTES 32 /* of a name */

/* Whether the URI is one of a host device for which no name is given. */
bool own_device_lacks_name(const char *uri);
/* A name that begins with `verb` and that no other run has. */
void own_device_name(const char *verb, char name[static OWN_DEVICE_BYTES]);
/* Removes the device of this name; "": there is none. Whoever still holds memory there keeps it. */
void own_device_remove(const char *name);

#endif
