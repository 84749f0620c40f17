# SPDX-License-Identifier: Apache-2.0
"""SGLang gives its memory up and takes it back, as an RL trainer asks it to.

    TIDEGATE=on python sglang_rounds.py MODEL        # on a GPU
"""

import sys
import time

import sglang

PROMPT = "The tide comes in"
GREEDY = {"temperature": 0.0, "max_new_tokens": 16}


def timed(what, call, tag):
    began = time.perf_counter()
    call(tags=[tag])
    print(f"{what} {tag} in {(time.perf_counter() - began) * 1e3:.0f} ms")


def main() -> None:
    engine = sglang.Engine(model_path=sys.argv[1], enable_memory_saver=True,
                           enable_weights_cpu_backup=True)
    before = engine.generate(PROMPT, GREEDY)["text"]
    for _ in range(2):
        for tag in ("kv_cache", "weights"):
            timed("release", engine.release_memory_occupation, tag)
        # Here the trainer has the card. Asking twice does no harm:
        engine.release_memory_occupation(tags=["weights"])
        for tag in ("weights", "kv_cache"):
            timed("resume", engine.resume_memory_occupation, tag)
        same = engine.generate(PROMPT, GREEDY)["text"] == before
        print("the text is the same" if same else "the text differs")
    engine.shutdown()


if __name__ == "__main__":  # SGLang's processes import this file
    main()
