# SPDX-License-Identifier: Apache-2.0
"""Frames and stacks.

torch keeps one dict per distinct frame and one list per gathered context, and pickle's memo keeps
that sharing in the file. A generator that copied frames would make files of another size and would
never test what a reader does with shared ones.
"""

LIBRARY = "/usr/local/lib/python3.12/dist-packages"


class Stacks:
    """Interns frames; hands out a fresh list of shared frames per event, as torch does."""

    def __init__(self, root="/workspace/rl", library=LIBRARY, extra=None):
        self.root = root
        self.library = library
        self.extra = extra or {}  # more keys of newer writers, for every frame
        self._frames = {}

    def frame(self, name, filename, line):
        """The one dict of this frame."""
        key = (name, filename, line)
        found = self._frames.get(key)
        if found is None:
            found = {"name": name, "filename": filename, "line": line}
            found.update(self.extra)
            self._frames[key] = found
        return found

    def own(self, name, file, line):
        """A frame of the user's code."""
        return self.frame(name, f"{self.root}/{file}", line)

    def lib(self, name, file, line):
        """A frame of an installed library."""
        return self.frame(name, f"{self.library}/{file}", line)

    def native(self, name, filename="??"):
        """A frame of C++ code, with stacks="all"."""
        return self.frame(name, filename, 0)

    def through_module(self, inner, depth=1):
        """inner, called through `depth` layers of torch.nn.Module, innermost first."""
        stack = list(inner)
        for _ in range(depth):
            stack.append(self.lib("_call_impl", "torch/nn/modules/module.py", 1790))
            stack.append(self.lib("_wrapped_call_impl", "torch/nn/modules/module.py", 1779))
        return stack

    def with_native(self, stack):
        """stack as stacks="all" records it: C++ frames around the Python ones."""
        head = [
            self.native("torch::unwind::unwind()"),
            self.native("torch::CapturedTraceback::gather(bool, bool, bool)"),
            self.native("c10::cuda::CUDACachingAllocator::Native::malloc(void**, unsigned long)",
                        "CUDACachingAllocator.cpp"),
            self.native("at::detail::empty_cuda(c10::ArrayRef<long>)", ""),
        ]
        tail = [
            self.native("_PyEval_EvalFrameDefault"),
            self.native("Py_BytesMain"),
            self.native("_start"),
        ]
        return head + list(stack) + tail


def where(frame):
    """How the command names a site: basename:line function."""
    return f"{frame['filename'].rsplit('/', 1)[-1]}:{frame['line']} {frame['name']}"
