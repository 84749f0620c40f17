# SPDX-License-Identifier: Apache-2.0
"""A program that knows nothing of Tidegate and holds memory of the card. vllm_beside.py starts it.
"""
import argparse

from rollout_link import serve


class Stranger:
    def __init__(self):
        self.held = None

    def start(self):
        """Makes the context, which takes memory as well."""
        import torch
        torch.cuda.synchronize()

    def take_all_but(self, size_bytes):
        """Leaves so much of the card's free memory to the others; returns what it took."""
        import torch
        free = torch.cuda.mem_get_info()[0]
        self.held = torch.empty(max(0, free - size_bytes), dtype=torch.uint8, device="cuda")
        return self.held.numel()

    def leave(self):
        import torch
        self.held = None
        torch.cuda.empty_cache()


def main():
    parser = argparse.ArgumentParser(description="holds memory; vllm_beside.py starts it")
    parser.add_argument("--link", type=int, required=True)
    stranger = Stranger()
    serve(parser.parse_args().link, {name: getattr(stranger, name)
                                     for name in ("start", "take_all_but", "leave")})


if __name__ == "__main__":
    main()
