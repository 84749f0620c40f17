# SPDX-License-Identifier: Apache-2.0
"""vLLM's sleep mode with Tidegate, which changes nothing in the program: TIDEGATE=on does it.

    TIDEGATE=on python vllm_levels.py MODEL
"""

import sys
import time

from vllm import LLM, SamplingParams


def main(model: str) -> None:
    llm = LLM(model=model, enable_sleep_mode=True, gpu_memory_utilization=0.5)
    greedy = SamplingParams(temperature=0, max_tokens=16)

    def answer() -> str:
        return llm.generate(["A tide turns"], greedy)[0].outputs[0].text

    before = answer()
    llm.sleep(level=1)  # the weights to the host, the cache dropped; the card is free for others
    for tags in (["weights"], ["kv_cache"]):
        while True:
            try:
                llm.wake_up(tags=tags)
                break
            except Exception as problem:  # from an engine core of its own it is no RuntimeError
                print(problem)  # who has the memory; nothing is lost, so it can be tried again
                time.sleep(1)
    print("the same answer" if answer() == before else "another answer")


if __name__ == "__main__":
    main(sys.argv[1])
