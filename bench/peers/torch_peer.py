# SPDX-License-Identifier: Apache-2.0
"""torch_memory_saver's pause and resume, or torch's own offload, with one kind and size of block.

Started by bench/peers/run. Where torch is missing it says so.
"""
from peer_play import NotHere, block_count, orders, seen, tell, timed


def imported(name):
    try:
        return __import__(name)
    except ImportError as problem:
        raise NotHere(f"{name} cannot be imported: {problem}") from problem


def torch_with_card():
    torch = imported("torch")
    if not torch.cuda.is_available():
        raise NotHere("torch sees no card")
    torch.zeros(1, device="cuda")  # its context is there before anything is timed
    return torch


def blocks(torch, options):
    return [torch.full((options.block,), number % 251, dtype=torch.uint8, device="cuda")
            for number in range(block_count(options))]


def wrong_blocks(tensors):
    return sum(int(tensor.min()) != number % 251 or int(tensor.max()) != number % 251
               for number, tensor in enumerate(tensors))


def region_play(options):
    """Content is looked at where there is a backup."""
    torch = torch_with_card()
    saver = imported("torch_memory_saver").torch_memory_saver
    saver.hook_mode = "torch"
    if options.kind == "host, kept":
        saver.retain_cpu_backup = True
    is_saved = options.kind != "no backup"
    with saver.region(tag="blocks", enable_cpu_backup=is_saved):
        tensors = blocks(torch, options)

    def moved(call):
        torch.cuda.synchronize()
        return timed(lambda: (call("blocks"), torch.cuda.synchronize()))

    rounds = [[moved(saver.pause), moved(saver.resume)] for _ in range(options.rounds)]
    return seen(options, rounds, wrong_blocks(tensors) if is_saved else None)


def offload_play(options):
    """Tensor by tensor, as trainers do it; what the card had is freed in between."""
    torch = torch_with_card()
    tensors, is_pinned, rounds = blocks(torch, options), options.kind == "pinned", []

    def move(where):
        for number, tensor in enumerate(tensors):
            tensors[number] = tensor.to(where, non_blocking=is_pinned)
        torch.cuda.synchronize()

    for _ in range(options.rounds):
        torch.cuda.synchronize()
        out = timed(lambda: move("cpu"))
        torch.cuda.empty_cache()
        torch.cuda.synchronize()
        rounds.append([out, timed(lambda: move("cuda"))])
    return seen(options, rounds, wrong_blocks(tensors))


PEERS = {"torch_memory_saver": region_play, "torch offload": offload_play}


def main():
    options = orders(__doc__).parse_args()
    tell(PEERS[options.peer], options)


if __name__ == "__main__":
    main()
