/* SPDX-License-Identifier: Apache-2.0 */
/* Does what its words say, one after the other: host12 THING… */
#include "toyhost.h"

int main(int count, char **words) {
    for (int i = 1; i < count; i++) {
        if (host_do(words[i]) != 0)
            return 2;
    }
    return 0;
}
