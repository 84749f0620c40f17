/* SPDX-License-Identifier: Apache-2.0 */
/* Tidegate: GPU memory that flows between the programs that share a card.
 *
 * The version of the library, and the mark of its exported functions. Every function here and in
 * the other headers is thread-safe unless its comment says otherwise. */
#ifndef TIDEGATE_TIDEGATE_H
#define TIDEGATE_TIDEGATE_H

#ifdef __cplusplus
extern "C" {
#endif

#define TG_VERSION_MAJOR 0
#define TG_VERSION_MINOR 1
#define TG_VERSION_PATCH 0

/* Marks what libtidegate.so exports; all else is hidden. */
#if defined(__GNUC__)
#define TG_API __attribute__((visibility("default")))
#define TG_MUST_USE __attribute__((warn_unused_result))
#else
#define TG_API
#define TG_MUST_USE
#endif

/* "MAJOR.MINOR.PATCH" of the library in use; static, never NULL. */
TG_API const char *tg_version(void);

#ifdef __cplusplus
}
#endif

#endif
