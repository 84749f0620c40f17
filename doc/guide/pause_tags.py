# SPDX-License-Identifier: Apache-2.0
"""A program written for torch_memory_saver, with Tidegate in its place.

    python pause_tags.py        # on a GPU
"""

import torch

from tidegate.compat.torch_memory_saver import torch_memory_saver


def free_mib() -> int:
    return torch.cuda.mem_get_info(0)[0] >> 20


def main() -> None:
    with torch_memory_saver.region("weights", enable_cpu_backup=True):
        weights = torch.ones(4 << 20, device="cuda")
    with torch_memory_saver.region("kv_cache"):
        cache = torch.zeros(8 << 20, device="cuda")
    places = weights.data_ptr(), cache.data_ptr()

    awake = free_mib()
    torch_memory_saver.pause()
    print(f"paused: {free_mib() - awake} MiB are the driver's")
    for tag in ("weights", "kv_cache"):
        try:
            torch_memory_saver.resume(tag)
        except RuntimeError as problem:  # who has the memory; all is paused, so try again later
            print(problem)
            return
    same = places == (weights.data_ptr(), cache.data_ptr())
    print(f"resumed: {awake - free_mib()} MiB missing, addresses {'as before' if same else 'new'}")


if __name__ == "__main__":
    main()
