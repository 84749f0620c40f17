# SPDX-License-Identifier: Apache-2.0
"""What does it cost to move an optimizer's state to the host and back, by which way?

    offload.py [--quick] [--results DIR] [--device URI]

The state is 126 float32 tensors, 12 GiB in all, of sizes that are no powers of two. Ways, each in a
process of its own: "tidegate" (HostCopies), "plain" (`.to("cpu")`), "pinned" (`.to("cpu",
non_blocking=True)`, which trainers use). For each: the first round, the later ones, the host memory
it has afterwards, and whether every byte came back. The measure is a plain copy of as many bytes
between the card and one pinned buffer, in the process of "tidegate". Then what only a card shows:
models of FSDP1 and FSDP2 that are offloaded between steps, and a load that lacks memory. Rows go to
offload-DATE.json. With the URI of a host device CPU tensors stand for the card's: it shows that it
runs, and no speed.
"""
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from card_results import GIB, MIB, no_row, parser, row, write_results

SIZES = (196.0, 135.5, 67.25, 13.125)  # MiB: a layer's
LAYERS, HEADS = 31, 2                  # and two of 40.5 MiB
BLOCK = 2 * GIB                        # the pinned buffer


def sizes(options):
    """Bytes of each tensor."""
    unit = MIB // 64 if options.quick else MIB
    return [int(size * unit) for size in (*SIZES * LAYERS, *[40.5] * HEADS)]


class Machine:
    """The card, or what stands for it: where tensors are, and the end of its work."""

    def __init__(self, options):
        import torch
        self.torch, self.uri = torch, options.device
        self.is_card = options.device.startswith("cuda:")
        self.where = torch.device(options.device if self.is_card else "cpu")

    def wait(self):
        if self.is_card:
            self.torch.cuda.synchronize(self.where)

    def state(self, options):
        """Tensors with content, and what tells whether it is still that."""
        torch = self.torch
        tensors = [torch.empty(size // 4, device=self.where).uniform_() for size in sizes(options)]
        return tensors, self.sums(tensors)

    def sums(self, tensors):
        return [int(tensor.view(self.torch.int32).sum(dtype=self.torch.int64))
                for tensor in tensors]


def status_bytes(name):
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    return 0


def available_bytes():
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


# ---- the ways ------------------------------------------------------------------------------------

def tidegate_way(machine, tensors):
    """(out, back, facts): two calls that move the list's tensors in place."""
    import tidegate
    copies = tidegate.HostCopies("optimizer", device=machine.uri)
    return (lambda: copies.offload(tensors), lambda: copies.load(),
            lambda: {"size_bytes": copies.size_bytes, "is_pinned": copies.is_pinned})


def torch_way(is_pinned):
    def made(machine, tensors):
        def move(where):
            for at, tensor in enumerate(tensors):
                tensors[at] = tensor.to(where, non_blocking=is_pinned)
            machine.wait()

        return lambda: move("cpu"), lambda: move(machine.where), dict

    return made


WAYS = {"tidegate": tidegate_way, "plain": torch_way(False), "pinned": torch_way(True)}


def timed(call):
    begun = time.monotonic()
    call()
    return time.monotonic() - begun


def plain_copies(machine, options):
    """Seconds for as many bytes between the card and one pinned buffer, out and back: the best of
    three."""
    torch, total = machine.torch, sum(sizes(options))
    block = min(BLOCK, total // 4)
    there = torch.empty(block, dtype=torch.uint8, device=machine.where)
    here = torch.empty(block, dtype=torch.uint8, pin_memory=machine.is_card)

    def copy(to, of):
        for at in range(0, total, block):
            end = min(block, total - at)
            to[:end].copy_(of[:end], non_blocking=True)
        machine.wait()

    copy(here, there)
    return [min(timed(lambda: copy(*pair)) for _ in range(3))
            for pair in ((here, there), (there, here))]


def play(options):
    """One way, in this process; returns what was seen."""
    machine = Machine(options)
    tensors, before = machine.state(options)
    machine.wait()
    held = {name: status_bytes(name) for name in ("VmRSS", "VmPin")}
    free, rounds = available_bytes(), []
    out, back, facts = WAYS[options.way](machine, tensors)
    for number in range(options.rounds):
        out_s = timed(out)
        if number + 1 == options.rounds:
            grown = {name: status_bytes(name) - was for name, was in held.items()}
            grown["available"] = free - available_bytes()
        rounds.append([out_s, timed(back)])
    wrong = sum(one != other for one, other in zip(machine.sums(tensors), before))
    seen = {"way": options.way, "bytes": sum(sizes(options)), "rounds": rounds, "wrong": wrong,
            "grown": grown, **facts()}
    if options.way == "tidegate":
        seen["plain_copies"] = plain_copies(machine, options)
        seen["starved"] = starved(machine, tensors, before, out, back)
    return seen


def starved(machine, tensors, before, out, back):
    """A load while another holds the card's memory: its exception, and whether all stayed and came
    back when it let go. None where there is no card."""
    if not machine.is_card:
        return None
    import tidegate
    out()
    machine.torch.cuda.empty_cache()
    free, _ = machine.torch.cuda.mem_get_info(machine.where)
    least = max(tensor.numel() * 4 for tensor in tensors)
    other = machine.torch.empty(free - least - 512 * MIB, dtype=machine.torch.uint8,
                                device=machine.where)
    said = None
    try:
        back()
    except tidegate.TidegateWouldNotFit as problem:
        said = str(problem)
    stayed = all(tensor.device.type == "cpu" for tensor in tensors)
    del other
    back()
    return {"said": said, "stayed": stayed, "same": machine.sums(tensors) == before}


# ---- FSDP ----------------------------------------------------------------------------------------

def fsdp(options):
    """Losses of a model, over one rank, with and without offloading between steps."""
    machine = Machine(options)
    torch = machine.torch
    with tempfile.TemporaryDirectory() as folder:
        torch.distributed.init_process_group("nccl" if machine.is_card else "gloo",
                                             init_method=f"file://{folder}/meet", rank=0,
                                             world_size=1)
        found = {kind: [train(machine, kind, moved) for moved in (False, True)]
                 for kind in ("fsdp1", "fsdp2")}
        torch.distributed.destroy_process_group()
    return found


def train(machine, kind, is_moved):
    import tidegate
    torch = machine.torch
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Linear(512, 2000), torch.nn.ReLU(),
                              torch.nn.Linear(2000, 64)).to(machine.where)
    net = sharded(machine, kind, net)
    adam = torch.optim.Adam(net.parameters(), lr=1e-3)
    copies, losses, left = tidegate.HostCopies(kind, device=machine.uri), [], []
    for _ in range(4):
        adam.zero_grad()
        loss = net(torch.randn(32, 512, device=machine.where)).square().mean()
        loss.backward()
        adam.step()
        losses.append(loss.item().hex())
        adam.zero_grad()
        if is_moved:
            used = torch.cuda.memory_allocated(machine.where) if machine.is_card else 1
            move(net, adam, copies, kind, machine)
            left.append((torch.cuda.memory_allocated(machine.where) if machine.is_card else 0)
                        / used)
            back(net, copies, kind, machine)
    return {"losses": losses, "left": left}


def sharded(machine, kind, net):
    from torch.distributed import device_mesh, fsdp
    if kind == "fsdp1":
        return fsdp.FullyShardedDataParallel(net, device_id=machine.where)
    mesh = device_mesh.init_device_mesh(machine.where.type, (1,))
    return fsdp.fully_shard(net, mesh=mesh)


def move(net, adam, copies, kind, machine):
    """As verl's functions do it around ours."""
    state = [value for one in adam.state.values() for value in one.values()]
    flat = [] if kind == "fsdp2" else [handle.flat_param for handle in net._all_handles]
    copies.offload([*state, *net.parameters(), *(one._local_shard for one in flat)])
    again(net, kind, machine.torch.device("cpu"))


def back(net, copies, kind, machine):
    copies.load()
    again(net, kind, machine.where)


def again(net, kind, where):
    """Nothing moves: FSDP looks at its parameters again."""
    if kind == "fsdp2":
        net.to(where)
        return
    for handle in net._all_handles:
        handle.flat_param_to(where)
        handle.flat_param._local_shard = handle.flat_param.data


# ---- what comes of it ----------------------------------------------------------------------------

def speeds(seen, way, number):
    """GiB/s of the rounds; number 0: out, 1: back."""
    return [seen[way]["bytes"] / GIB / pair[number] for pair in seen[way]["rounds"]]


def host_share(one):
    """Host memory for each byte: what its process has grown by, or what the machine lacks since,
    whichever is more; the driver's own pinned memory is in no process's figure."""
    return max(one["grown"]["VmRSS"], one["grown"]["available"]) / one["bytes"]


def rows_of(seen):
    ours = seen["tidegate"]
    rows = []
    for number, name in ((0, "out"), (1, "back")):
        link = ours["bytes"] / GIB / ours["plain_copies"][number]
        later = speeds(seen, "tidegate", number)[1:]
        rows.append(row(f"offload: {name}, later rounds", "share of a plain pinned copy",
                        [speed / link for speed in later], (">=", 0.95),
                        {"gib_s": later, "plain_pinned_gib_s": link}))
    rows.append(row("offload: host memory", "of the bytes offloaded",
                    ours["size_bytes"] / ours["bytes"], ("<=", 1.02), ours["grown"]))
    rows.append(row("offload: host memory, as the kernel has it", "VmRSS, of the bytes offloaded",
                    ours["grown"]["VmRSS"] / ours["bytes"], ("<=", 1.02), ours["grown"]))
    rows.append(row("offload: pinned", "1: copies run at the link's speed",
                    int(ours["is_pinned"]), ("==", 1)))
    for way in seen:
        if way != "tidegate":
            rows += beside(seen, way)
        rows.append(row(f"{way}: tensors that came back otherwise", "of 126", seen[way]["wrong"],
                        ("==", 0)))
    return rows + starved_rows(ours["starved"])


def beside(seen, way):
    first = [speeds(seen, one, 0)[0] for one in ("tidegate", way)]
    later = [statistics.median(speeds(seen, one, 0)[1:]) for one in ("tidegate", way)]
    return [row(f"offload: out, first round, beside {way}", "times as fast", first[0] / first[1],
                None, {"gib_s": first, "back": [speeds(seen, one, 1)[0]
                                                for one in ("tidegate", way)]}),
            row(f"offload: out, later rounds, beside {way}", "times as fast", later[0] / later[1],
                None, {"gib_s": later}),
            row(f"{way}: host memory", "of the bytes offloaded", host_share(seen[way]), None,
                seen[way]["grown"])]


def starved_rows(starved):
    if starved is None:
        return [no_row("offload: a load that lacks memory", "there is no card")]
    good = starved["said"] is not None and starved["stayed"] and starved["same"]
    return [row("offload: a load that lacks memory", "1: refused, all stayed, and came back later",
                int(good), ("==", 1), starved)]


def fsdp_rows(found):
    rows = []
    for kind, (alone, moved) in found.items():
        differ = sum(one != other for one, other in zip(alone["losses"], moved["losses"]))
        rows.append(row(f"offload: {kind}: losses that differ", "of 4", differ, ("==", 0),
                        {"left": moved["left"], "alone": alone["losses"]}))
    return rows


def child(options, way):
    """What a process of its own has seen; None with a row's reason where it failed."""
    rounds = 2 if way == "plain" else options.rounds  # its later ones take as long as its first
    command = [sys.executable, __file__, "--way", way, "--device", options.device,
               "--rounds", str(rounds), *(["--quick"] if options.quick else [])]
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, check=False)
    if done.returncode != 0:
        return None
    return json.loads(done.stdout.splitlines()[-1])


def main():
    arguments = parser(__doc__)
    arguments.add_argument("--way", choices=[*WAYS, "fsdp"], help="this one, in this process")
    arguments.add_argument("--device", default="cuda:0")
    arguments.add_argument("--rounds", type=int, default=6)
    options = arguments.parse_args()
    if options.way:
        print(json.dumps(fsdp(options) if options.way == "fsdp" else play(options)))
        sys.stdout.flush()
        os._exit(0)  # torch's process groups need not come apart in order
    ways = [way for way in WAYS if way != "pinned" or options.device.startswith("cuda:")]
    seen = {way: child(options, way) for way in ways}
    failed = [way for way, one in seen.items() if one is None]
    rows = [no_row(f"offload: {way}", "its process failed") for way in failed]
    seen = {way: one for way, one in seen.items() if one is not None}
    if "tidegate" in seen:
        rows += rows_of(seen)
    trained = child(options, "fsdp")
    rows += fsdp_rows(trained) if trained else [no_row("offload: fsdp", "its process failed")]
    write_results(options, "offload", rows, {"seen": seen})
    return 0 if all(one["pass"] in (True, None) for one in rows) and not failed and trained else 1


if __name__ == "__main__":
    sys.exit(main())
