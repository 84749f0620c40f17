# SPDX-License-Identifier: Apache-2.0
"""A trainer whose model and Adam state leave the card between steps. Without a card, CPU tensors
stand for a card's; with the argument cuda:0 they are one's."""

import sys
import tidegate
import torch

DEVICE = sys.argv[1] if sys.argv[1:] else "host:capacity=64MiB,name=offload"
WHERE = DEVICE if DEVICE.startswith("cuda") else "cpu"


def state_of(adam):
    """The tensors of an optimizer's state."""
    return [value for state in adam.state.values() for value in state.values()
            if torch.is_tensor(value)]


if __name__ == "__main__":
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.Linear(2048, 8)).to(WHERE)
    adam = torch.optim.Adam(net.parameters())
    model = tidegate.HostCopies("model", device=DEVICE)
    optimizer = tidegate.HostCopies("optimizer", device=DEVICE)
    for step in range(3):
        adam.zero_grad()
        loss = net(torch.ones(4, 512, device=WHERE)).square().mean()
        loss.backward()
        adam.step()
        print(f"step {step}: loss {loss.item():.3g}")
        print(model.offload(net.parameters()).line())
        print(optimizer.offload(state_of(adam)).line())
        torch.save(net.state_dict(), "model.pt")  # they are CPU tensors, of their own size
        torch.cuda.empty_cache()  # what torch keeps of it is the rollout's now
        model.load()
        optimizer.load()
    model.close()
    optimizer.close()
