# SPDX-License-Identifier: Apache-2.0
"""The trainer that takes turns: a small Qwen2.5-VL with random weights and AdamW.

Between its steps parameters and optimizer state move to the host and back as an FSDP trainer with
offload moves them: tensor by tensor, non-blocking, with one empty_cache after the parameters and
none after the optimizer state. Every number comes from seeds, and deterministic algorithms are on:
two runs of the same steps give the same losses, to the last bit.
"""
import warnings

import torch
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

IMAGE, VIDEO, VISION_START, VISION_END = 31000, 31001, 31002, 31003
SIZES = {  # hidden, intermediate, layers, micro-batches a step, batch, text tokens
    "full": (1536, 4096, 16, 3, 4, 512),
    "quick": (1024, 2816, 4, 2, 2, 256),
    "tiny": (256, 512, 2, 2, 1, 16),
}


def build(hidden, intermediate, layers):
    heads = hidden // 128
    config = Qwen2_5_VLConfig(
        text_config=dict(
            hidden_size=hidden, intermediate_size=intermediate, num_hidden_layers=layers,
            num_attention_heads=heads, num_key_value_heads=2, vocab_size=32000,
            max_position_embeddings=4096,
            rope_scaling={"type": "mrope", "rope_type": "default", "mrope_section": [16, 24, 24]}),
        vision_config=dict(
            depth=4, hidden_size=512, intermediate_size=1024, num_heads=8, out_hidden_size=hidden,
            patch_size=14, spatial_merge_size=2, temporal_patch_size=2, in_channels=3,
            window_size=112, fullatt_block_indexes=[1, 3]),
        image_token_id=IMAGE, video_token_id=VIDEO, vision_start_token_id=VISION_START,
        vision_end_token_id=VISION_END)
    # Attention by plain matrix products: the only kind whose gradient is the same in every run.
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    return Qwen2_5_VLForConditionalGeneration(config)


class Trainer:
    """One process's model, optimizer and data."""

    def __init__(self, size):
        hidden, intermediate, layers, self.micro_batches, self.batch_size, self.text = SIZES[size]
        self.device = "cpu"
        self.noted = set()  # what torch could not do deterministically
        torch.use_deterministic_algorithms(True, warn_only=True)
        self.model = build(hidden, intermediate, layers).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)

    def to(self, device):
        """For good: where its data goes too."""
        self.device = device
        self.model.to(device)

    def batch(self, number):
        """Images of two sizes in turn, so that the allocator meets blocks of several sizes."""
        rows, columns = (1, 32, 16 + 16 * (number % 2))[1:]
        generator = torch.Generator().manual_seed(number)
        image = rows * columns // 4
        ids = torch.randint(0, 30000, (self.batch_size, self.text + image + 2),
                            generator=generator)
        ids[:, 5] = VISION_START
        ids[:, 6:6 + image] = IMAGE
        ids[:, 6 + image] = VISION_END
        kinds = torch.zeros_like(ids)
        kinds[ids == IMAGE] = 1
        pixels = torch.randn(self.batch_size * rows * columns, 3 * 2 * 14 * 14,
                             generator=generator)
        made = dict(input_ids=ids, labels=ids, attention_mask=torch.ones_like(ids),
                    mm_token_type_ids=kinds, pixel_values=pixels,
                    image_grid_thw=torch.tensor([(1, rows, columns)] * self.batch_size))
        return {name: value.to(self.device) for name, value in made.items()}

    def forward(self, number):
        with torch.autocast(self.device, torch.bfloat16):
            return self.model(**self.batch(number))

    def step(self, number):
        """Trains one step; returns each micro-batch's loss as repr() writes it."""
        losses = []
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for micro in range(self.micro_batches):
                loss = self.forward(number * 10 + micro).loss
                loss.backward()
                losses.append(repr(float(loss.detach())))
                del loss
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        self.noted.update(str(w.message)[:120] for w in caught if "determinis" in str(w.message))
        return losses

    def offload(self):
        self._parameters_to("cpu")
        torch.cuda.empty_cache()
        self._state_to("cpu")

    def load(self):
        self._parameters_to(self.device)
        self._state_to(self.device)

    def _parameters_to(self, device):
        for parameter in self.model.parameters():
            parameter.data = parameter.data.to(device, non_blocking=True)

    def _state_to(self, device):
        for state in self.optimizer.state.values():
            for name, value in state.items():
                if torch.is_tensor(value) and value.dim() > 0:  # the step count lives on the host
                    state[name] = value.to(device, non_blocking=True)

    def weight_bytes(self):
        """Of the copy that the rollout gets, in bfloat16."""
        return sum(p.numel() for p in self.model.parameters()) * 2

    def fill_bucket(self, bucket, start):
        """Stages parameters from the start-th on until the bucket (bfloat16) is full.

        Returns (elements written, the parameter to go on with; None after the last).
        """
        used = 0
        for index, parameter in enumerate(self.model.parameters()):
            if index < start:
                continue
            if used + parameter.numel() > bucket.numel():
                if used == 0:
                    raise ValueError(f"a parameter of {parameter.numel()} elements fits no bucket")
                return used, index
            staged = parameter.detach().to(bucket.device, non_blocking=True).to(torch.bfloat16)
            bucket[used:used + parameter.numel()].copy_(staged.reshape(-1))
            used += parameter.numel()
        return used, None
