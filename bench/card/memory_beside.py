# SPDX-License-Identifier: Apache-2.0
"""A process that holds memory of the card beside another: as a tenant, or as a foreign program.

Run by receipt_truth.py. A foreign program knows nothing of Tidegate.
"""
import argparse

from rollout_link import serve

held = []


def start_card():
    """A context and one product, so that libraries have loaded what they need."""
    import torch
    one = torch.ones(64, 64, device="cuda")
    (one @ one).sum().item()


def hold_as_tenant(size_bytes):
    start_card()
    import tidegate
    held.append(tidegate.tag("kv_cache").alloc(size_bytes))


def hold_as_foreign(size_bytes):
    start_card()
    import torch
    held.append(torch.empty(size_bytes, dtype=torch.uint8, device="cuda"))


def account():
    """{item: bytes} as this process sees it."""
    import tidegate
    return {stay.item: stay.size_bytes for stay in tidegate.reclaim().stays}


def main():
    parser = argparse.ArgumentParser(description="holds memory; receipt_truth.py starts it")
    parser.add_argument("--link", type=int, required=True)
    serve(parser.parse_args().link, {
        "start": start_card, "tenant": hold_as_tenant, "foreign": hold_as_foreign,
        "account": account})


if __name__ == "__main__":
    main()
