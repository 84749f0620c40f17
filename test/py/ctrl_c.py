# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C at a chosen line: for scripts that try one line after the other."""

import sys


def interrupted(call, after, *modules):
    """Calls; Ctrl-C comes before the line that is the `after`th of those of these modules. Whether
    it came."""
    files = {module.__file__ for module in modules}
    left = [after]

    def trace(frame, event, _):
        if frame.f_code.co_filename not in files:
            return None
        if event == "line":
            left[0] -= 1
            if left[0] == 0:
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(None)
    return left[0] <= 0
