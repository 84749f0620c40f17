/* SPDX-License-Identifier: Apache-2.0 */
/* A directory like the one that programs share, in it or beside it, for the doctor alone: what is
 * made there shows what could be made, and goes again. */
#ifndef CLI_DOCTOR_SCRATCH_H
#define CLI_DOCTOR_SCRATCH_H

#include "doctor.h"

/* Fills in scratch, or leaves it empty and says why in scratch_why. */
void doctor_scratch_make(struct doctor *doctor);
void doctor_scratch_remove(const struct doctor *doctor);

#endif
