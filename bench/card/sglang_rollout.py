# SPDX-License-Identifier: Apache-2.0
"""The real SGLang as a rollout: its engine with its scheduler in a process of its own, and
whichever memory saver that finds. Run by sglang_beside.py in the environment of the packed engine.
"""
import argparse
import json
import os
import sys
import tempfile
import threading

from rollout_link import serve

VOCABULARY = 32000
ANSWER_S = 20  # where the scheduler has died, nobody answers
MODEL = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 2048,
    "intermediate_size": 5632, "num_hidden_layers": 16, "num_attention_heads": 16,
    "num_key_value_heads": 8, "vocab_size": VOCABULARY, "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "hidden_act": "silu",
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "attention_dropout": 0.0,
    "use_sliding_window": False, "sliding_window": None, "max_window_layers": 16,
    "initializer_range": 0.02, "use_cache": True, "bos_token_id": 1, "eos_token_id": 2,
}


class SglangRollout:
    """The engine, and the prompts that it answers one at a time, so that batches are the same."""

    def __init__(self, cache_tokens):
        self.cache_tokens = cache_tokens
        self.engine = self.thread = None
        self.failure = None
        self.prompts = [[(i * 37 + j * 11) % (VOCABULARY - 10) + 5 for j in range(16 + 4 * i)]
                        for i in range(4)]

    def start(self):
        import sglang
        import torch
        torch.zeros(1, device="cuda")  # this process's own context, before anything is measured
        folder = tempfile.mkdtemp(prefix="sglang-model-")
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as out:
            json.dump(MODEL, out)
        self.engine = sglang.Engine(
            model_path=folder, load_format="dummy", skip_tokenizer_init=True, dtype="bfloat16",
            attention_backend="triton", sampling_backend="pytorch", grammar_backend="none",
            disable_cuda_graph=True, disable_piecewise_cuda_graph=True, disable_radix_cache=True,
            mem_fraction_static=0.3, max_total_tokens=self.cache_tokens, context_length=4096,
            max_running_requests=64, enable_memory_saver=True, enable_weights_cpu_backup=True,
            random_seed=1, log_level="warning")
        self.generate()  # compiles kernels
        return {"version": sglang.__version__, "tokens": self.generate()}

    def release(self, tag):
        self.engine.release_memory_occupation(tags=[tag])

    def resume(self, tag):
        self.engine.resume_memory_occupation(tags=[tag])

    def begin_resume(self, tag):
        """One that may have to wait: it is asked for by a thread."""
        def run():
            try:
                self.resume(tag)
            except BaseException as problem:  # told by end_resume
                self.failure = problem

        self.failure, self.thread = None, threading.Thread(target=run, daemon=True)
        self.thread.start()

    def is_resuming(self, wait_s):
        """Whether it still waits after so long."""
        self.thread.join(wait_s)
        return self.thread.is_alive()

    def end_resume(self):
        self.thread.join(ANSWER_S)
        if self.failure is not None or self.thread.is_alive():
            raise RuntimeError(f"the resume has not ended well: {self.failure}")

    def free(self):
        """Bytes that the driver has free."""
        import torch
        return torch.cuda.mem_get_info()[0]

    def generate(self):
        greedy = {"temperature": 0.0, "max_new_tokens": 24, "ignore_eos": True}
        answers = [self.engine.generate(input_ids=prompt, sampling_params=greedy)
                   for prompt in self.prompts]
        return [list(answer["output_ids"]) for answer in answers]


def main():
    parser = argparse.ArgumentParser(description="SGLang; sglang_beside.py starts it")
    parser.add_argument("--link", type=int, required=True)
    parser.add_argument("--cache-tokens", type=int, default=262144)
    options = parser.parse_args()
    rollout = SglangRollout(options.cache_tokens)
    serve(options.link, {name: getattr(rollout, name) for name in (
        "start", "release", "resume", "begin_resume", "is_resuming", "end_resume", "free",
        "generate")})
    rollout.engine.shutdown()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":  # the scheduler's process imports this file
    main()
