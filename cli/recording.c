/* SPDX-License-Identifier: Apache-2.0 */
/* The assembler reads the file while this is compiled; RECORDING_FILE is its path then. */
#include "recording.h"

__asm__(".section .rodata, \"a\"\n"
        ".balign 16\n"
        ".global recording_begin\n"
        "recording_begin:\n"
        ".incbin \"" RECORDING_FILE "\"\n"
        ".global recording_end\n"
        "recording_end:\n"
        ".byte 0\n"
        ".previous\n");
