/* SPDX-License-Identifier: Apache-2.0 */
/* The recording that the command brings: six steps of a small Qwen2.5-VL, packed with xz. Part of
 * the program, so that an installed command needs no file beside it. */
#ifndef CLI_RECORDING_H
#define CLI_RECORDING_H

#define RECORDING_NAME "qwen_vl_leak_logits"

extern const unsigned char recording_begin[], recording_end[];

#endif
