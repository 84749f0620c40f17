# SPDX-License-Identifier: Apache-2.0
"""The real vLLM as the rollout: its offline engine in one process, with its own sleep mode.

Run by turns.py and vllm_beside.py with the engine on PYTHONPATH. The model is a random Qwen2, made
on the spot.
"""
import argparse
import ctypes
import glob
import json
import os
import sys
import tempfile

for name, value in {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
    "VLLM_HOST_IP": "127.0.0.1", "VLLM_LOOPBACK_IP": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0", "VLLM_USE_DEEP_GEMM": "0",
    "TOKENIZERS_PARALLELISM": "false", "USE_TF": "0", "USE_FLAX": "0",
    "VLLM_CACHE_ROOT": os.path.join(tempfile.gettempdir(), "vllm_cache"),
}.items():
    os.environ.setdefault(name, value)

from rollout_link import serve  # noqa: E402

VOCABULARY = 32000
MODEL = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 1024,
    "intermediate_size": 2816, "num_hidden_layers": 12, "num_attention_heads": 16,
    "num_key_value_heads": 4, "vocab_size": VOCABULARY, "hidden_act": "silu",
    "max_position_embeddings": 8192, "rms_norm_eps": 1e-6, "initializer_range": 0.02,
    "tie_word_embeddings": False, "use_cache": True, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": 0, "torch_dtype": "bfloat16", "rope_theta": 1000000.0,
    "use_sliding_window": False, "attention_dropout": 0.0,
}
LARGE = {"hidden_size": 4096, "intermediate_size": 16384, "num_hidden_layers": 32,
         "num_attention_heads": 64, "num_key_value_heads": 16}  # 15 GiB of weights


def load_nvrtc():
    """vLLM's sleep mode needs it by name, and torch may have it where the loader does not look."""
    found = [f for p in sys.path if p
             for f in glob.glob(os.path.join(p, "nvidia", "*", "lib", "libnvrtc.so.13"))]
    for library in ["libnvrtc.so.13", *found]:
        try:
            ctypes.CDLL(library)
            return
        except OSError:
            continue


class VllmRollout:
    """The engine, and the prompts that it answers at each turn."""

    def __init__(self, model):
        self.model = model
        self.engine = self.sampling = None
        self.weights = []
        self.prompts = [{"prompt_token_ids": [(i * 37 + j * 11) % (VOCABULARY - 10) + 5
                                              for j in range(16 + 4 * i)]} for i in range(4)]

    def start(self, share):
        """share: of the whole card, for the engine."""
        load_nvrtc()
        import torch
        import vllm
        folder = tempfile.mkdtemp(prefix="vllm-model-")
        for name, content in (("config.json", self.model),
                              ("generation_config.json", {"bos_token_id": 1, "eos_token_id": 2})):
            with open(os.path.join(folder, name), "w", encoding="utf-8") as out:
                json.dump(content, out)
        before = torch.cuda.mem_get_info()[0]
        self.engine = vllm.LLM(
            model=folder, load_format="dummy", skip_tokenizer_init=True, enable_sleep_mode=True,
            gpu_memory_utilization=share, max_model_len=2048, enforce_eager=True,
            dtype="bfloat16", seed=0, enable_prefix_caching=False, disable_log_stats=True,
            generation_config="vllm", attention_config={"backend": "TRITON_ATTN"})
        self.sampling = vllm.SamplingParams(temperature=0.0, max_tokens=32, ignore_eos=True,
                                            detokenize=False)
        free, total = torch.cuda.mem_get_info()
        return {"version": vllm.__version__, "needs_bytes": before - free, "total_bytes": total,
                "tokens": self.generate(), "pid": os.getpid()}

    def sleep(self, level):
        self.engine.sleep(level=level)

    def wake(self, tag):
        """None: everything."""
        self.engine.wake_up(tags=None if tag is None else [tag])

    def save_weights(self):
        """To the host, from where load_weights brings them after a sleep that dropped them."""
        self.weights = self.engine.collective_rpc(_weights_of)[0]

    def load_weights(self):
        weights = self.weights
        self.engine.collective_rpc(lambda worker: _write_weights(worker, weights))

    def free(self):
        """Bytes that the driver has free."""
        import torch
        return torch.cuda.mem_get_info()[0]

    def phases(self):
        """Milliseconds of the last sleep or wake, by phase; None: it was not Tidegate's."""
        module = sys.modules.get("tidegate.compat.vllm_allocator")
        last = module and module.Allocator.get_instance().last
        if last is None:
            return None
        seconds = {**last.phases, "all": last.seconds}
        return {phase: took * 1e3 for phase, took in seconds.items()}

    def generate(self):
        answers = self.engine.generate(self.prompts, self.sampling, use_tqdm=False)
        return [list(answer.outputs[0].token_ids) for answer in answers]


def _weights_of(worker):
    return [tensor.detach().cpu() for tensor in worker.model_runner.model.parameters()]


def _write_weights(worker, weights):
    for tensor, saved in zip(worker.model_runner.model.parameters(), weights):
        tensor.data.copy_(saved)


def main():
    parser = argparse.ArgumentParser(description="vLLM as a rollout; turns.py starts it")
    parser.add_argument("--link", type=int, required=True)
    parser.add_argument("--large", action="store_true", help="15 GiB of weights")
    options = parser.parse_args()
    rollout = VllmRollout({**MODEL, **LARGE} if options.large else MODEL)
    serve(options.link, {name: getattr(rollout, name) for name in (
        "start", "sleep", "wake", "generate", "save_weights", "load_weights", "free",
        "phases")})
    sys.stdout.flush()
    os._exit(0)  # the engine's own end can take long, and nothing is left to save


if __name__ == "__main__":
    main()
