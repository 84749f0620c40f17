/* SPDX-License-Identifier: Apache-2.0 */
#include <tidegate/tidegate.h>

#define TEXT_OF(x) #x
#define DOTTED(a, b, c) TEXT_OF(a) "." TEXT_OF(b) "." TEXT_OF(c)

const char *tg_version(void) {
    return DOTTED(TG_VERSION_MAJOR, TG_VERSION_MINOR, TG_VERSION_PATCH);
}
