# SPDX-License-Identifier: Apache-2.0
"""One process of verl that loads and offloads real tensors by verl's own functions, with our part
before them. There is no card: CPU tensors stand for a host device's. Run by tests:
verl_offload_world.py RECIPE SCENARIO [JSON]."""

import os
import sys
import types

import verl_world
from verl_world import EVENTS

DEVICE = "host:capacity=64MiB,name=offload"


def utils(name):
    """verl's module, told that the card is the CPU; and ours, if it is there, to use DEVICE."""
    import torch
    import verl  # noqa: F401: loads the plugin
    from importlib import import_module

    module = import_module(f"verl.utils.{name}_utils")
    module.get_device_name, module.get_device_id = lambda: "cpu", lambda: torch.device("cpu")
    ours = sys.modules.get("tidegate.verl.offloading")
    if ours is not None:
        ours.device_of = lambda where: DEVICE
    return torch, module


def held_by(owner, tensors):
    """For each tensor, whether it looks into the owner's host copies."""
    ours = sys.modules.get("tidegate.verl.offloading")
    if ours is None or owner not in ours._copies:
        return None
    return [ours._copies[owner].holds(tensor) for tensor in tensors]


def size_of(owner):
    ours = sys.modules.get("tidegate.verl.offloading")
    return ours._copies[owner].size_bytes if ours is not None and owner in ours._copies else 0


def sharded(torch, kind, ranks):
    """A model over so many ranks, by the FSDP that is asked for."""
    from torch.distributed.device_mesh import init_device_mesh

    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(16, 40), torch.nn.Tanh(), torch.nn.Linear(40, 5))
    model.register_buffer("scale", torch.ones(16))
    if kind == "none":
        return model
    if kind == "fsdp2":
        mesh = init_device_mesh("cpu", (ranks,))
        torch.distributed.fsdp.fully_shard(model[0], mesh=mesh)
        return torch.distributed.fsdp.fully_shard(model, mesh=mesh)
    return torch.distributed.fsdp.FullyShardedDataParallel(
        model, device_id=torch.device("cpu"), use_orig_params=kind == "fsdp1_orig")


def train(kind="fsdp2", rounds=4, off_after=None, ranks=1):
    """A trainer's rounds: everything in, a step, everything out. Of several ranks, each a process
    with RANK in its environment, the folder above is the place to meet."""
    torch, home = utils("fsdp")
    if kind.startswith("fsdp1"):
        home.get_device_id = lambda: 0
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{os.path.dirname(os.getcwd())}/meet-{kind}",
        rank=int(os.environ["RANK"]), world_size=ranks)
    model = sharded(torch, kind, ranks)
    adam = torch.optim.Adam(model.parameters(), lr=0.01)
    losses, held, sizes = [], [], []
    for number in range(rounds):
        if number > 0:
            home.load_fsdp_model_to_gpu(model)
            home.load_fsdp_optimizer(optimizer=adam, device_id="cpu")
        loss = model(torch.randn(8, 16)).square().sum()
        loss.backward()
        adam.step()
        losses.append(loss.item().hex())
        state = [value for one in adam.state.values() for value in one.values()]
        with torch.no_grad():
            model(torch.ones(1, 16))  # leaves FSDP2's root as it is gathered
        home.offload_fsdp_optimizer(adam)
        home.offload_fsdp_model_to_cpu(model, empty_cache=number > 0)
        held.append([held_by(model, model.parameters()), held_by(adam, state)])
        sizes.append([size_of(model), size_of(adam)])
        if off_after == number:
            import tidegate
            tidegate.off()
        adam.zero_grad(set_to_none=number % 2 == 0)
    code = home.load_fsdp_optimizer.__code__.co_filename
    return {"losses": losses, "held": held, "sizes": sizes, **verl_world.seen(),
            "ours": "tidegate" in code, "emptied": EVENTS.count("empty_cache"),
            "state": [sum(value.numel() * 4 for value in state),
                      sum(one.numel() * 4 for one in model.parameters())]}


# ---- Megatron's objects, as far as verl's functions look at them ---------------------------------

class Chunk:
    """A model chunk in DDP: flat buffers, and parameters that are views of them."""

    def __init__(self, torch):
        def buffer(count):
            return types.SimpleNamespace(param_data=torch.randn(count).bfloat16(),
                                         grad_data=torch.randn(count))

        self.buffers, self.expert_parallel_buffers = [buffer(1000), buffer(77)], [buffer(500)]
        self.module = torch.nn.Module()
        self.module.weight = torch.nn.Parameter(self.buffers[0].param_data[100:300].view(20, 10))
        self.module.base = torch.nn.Parameter(torch.randn(60), requires_grad=False)

    @property
    def all(self):
        return self.buffers + self.expert_parallel_buffers

    def modules(self):
        return iter(())


def told(tensors):
    return [float(tensor.double().sum()).hex() for tensor in tensors]


def megatron_model(rounds=3):
    """Flat buffers, what is frozen beside them, and a chunk that has none."""
    torch, home = utils("megatron")
    torch.manual_seed(4)
    home.DDP, chunk, plain = Chunk, Chunk(torch), torch.nn.Linear(30, 20)
    plain.weight.grad = torch.randn(20, 30)
    contents = [*(one.param_data for one in chunk.all), chunk.module.weight, chunk.module.base,
                plain.weight, plain.bias, plain.weight.grad]
    before, away, places = told(contents), [], []
    home._clear_te_fp8_weight_workspaces = lambda one: EVENTS.append("workspaces") or 0
    for _ in range(rounds):
        home.offload_megatron_model_to_cpu([chunk, plain])
        home.offload_megatron_model_to_cpu(models=[chunk, plain])  # again: nothing to do
        away.append([one.param_data.untyped_storage().nbytes() for one in chunk.all]
                    + [one.grad_data.untyped_storage().nbytes() for one in chunk.all]
                    + held_by(chunk, [one.param_data.cpu_data for one in chunk.all])
                    + held_by(chunk, [chunk.module.base]) + held_by(plain, plain.parameters())
                    + held_by(plain, [plain.weight.grad]))
        places.append([one.param_data.cpu_data.data_ptr() for one in chunk.all])
        home.load_megatron_model_to_gpu([chunk, plain], load_grad=True)
    shared = chunk.module.weight.data_ptr() - chunk.buffers[0].param_data.data_ptr()
    return {"same": told(contents) == before, "away": away, "places": places,
            "shared": shared == 200,
            "gradients": [float(one.grad_data.abs().sum()) for one in chunk.all],
            "sizes": [size_of(chunk), size_of(plain)], "events": EVENTS, **verl_world.seen()}


def megatron_optimizer(rounds=3):
    """Main parameters in lists of lists, a plain inner optimizer, a hybrid one, and none."""
    torch, home = utils("megatron")
    torch.manual_seed(5)

    class Chained:
        def __init__(self, parts):
            self.chained_optimizers = parts

    home.ChainedOptimizer = Chained
    weights = [torch.randn(50 + number) for number in range(4)]
    state = {number: {"exp_avg": torch.randn(50), "exp_avg_sq": torch.randn(50),
                      "master_param": torch.randn(50), "step": torch.ones(1)} for number in (0, 1)}
    inner = types.SimpleNamespace(state={"p": {"exp_avg": torch.randn(70)}})
    hybrid = types.SimpleNamespace(
        sub_optimizers=[types.SimpleNamespace(state=inner.state)], state={"p": {}},
        inner_param_to_orig_param={}, _move_new_state_to_right_device=lambda: EVENTS.append("own"))
    parts = [types.SimpleNamespace(shard_fp32_from_float16_groups=[[weights[0], None], weights[1]],
                                   optimizer=types.SimpleNamespace(state=state)),
             types.SimpleNamespace(optimizer=hybrid),
             types.SimpleNamespace(shard_fp32_from_float16_groups=[weights[2:]], optimizer=None)]
    whole, plain = Chained(parts), [*weights, *(state[0][name] for name in sorted(state[0]))]
    before, away, back = told(plain), [], []
    for _ in range(rounds):
        home.offload_megatron_optimizer(whole)
        away.append(held_by(whole, plain) + held_by(whole, [inner.state["p"]["exp_avg"]]))
        home.load_megatron_optimizer(optimizers=whole)
        back.append(held_by(whole, plain))
    return {"same": told(plain) == before, "away": away, "back": back, "size": size_of(whole),
            "events": EVENTS, **verl_world.seen()}


verl_world.SCENARIOS = {"train": train, "megatron_model": megatron_model,
                        "megatron_optimizer": megatron_optimizer}

if __name__ == "__main__":
    verl_world.main()
