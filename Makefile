# SPDX-License-Identifier: Apache-2.0
# A small front for Meson. Every target first installs what it needs and the machine lacks.

BUILD = build
PREFIX = /usr/local
FUZZ_SECONDS = 60
SOAK_SECONDS = 120
BENCH = # options of bench/run, such as --quick

python = .cache/venv/bin/python
data = test/data

.PHONY: help all run check check-verl check-engines check-ray check-san soak bench fuzz model \
    wheel install clean

all:
	@tools/setup build
	@tools/configure $(BUILD)
	@ninja -C $(BUILD)

help:
	@echo 'make all        build library, command and tests in $(BUILD)/'
	@echo 'make run        the demo, then the leaks planted in the recordings of $(data)/'
	@echo 'make check      all tests'
	@echo 'make check-verl verl'\''s seams over the real torch (downloads 0.8 GB, takes 1.5)'
	@echo 'make check-engines  stand-ins over the engines'\'' own files (downloads 0.3 GB)'
	@echo 'make check-ray  actors of a real Ray take turns and die (downloads 0.08 GB)'
	@echo 'make check-san  the tests with address and undefined-behaviour sanitizers'
	@echo 'make soak       processes take turns and die, for SOAK_SECONDS ($(SOAK_SECONDS))'
	@echo 'make bench      speed and memory, beside what they must reach'
	@echo '                (of a device: tidegate bench)'
	@echo 'make fuzz       fuzz the reader for FUZZ_SECONDS ($(FUZZ_SECONDS))'
	@echo 'make model      spin searches the ledger'\''s protocol, whole and without each guard'
	@echo 'make wheel      the wheel, in dist/'
	@echo 'make install    into PREFIX ($(PREFIX)); DESTDIR is heeded'
	@echo 'make clean      remove what was built; downloads and environments stay'

run:
	@tools/setup build
	@tools/configure $(BUILD)
	@ninja -C $(BUILD) cli/tidegate >$(BUILD)/said.txt || { cat $(BUILD)/said.txt; exit 1; }
	@echo '$$ tidegate demo'
	@$(BUILD)/cli/tidegate demo
	@echo '$$ tidegate leak $(data)/qwen_vl_leak_logits.pickle.xz'
	@$(BUILD)/cli/tidegate leak $(data)/qwen_vl_leak_logits.pickle.xz
	@echo '$$ tidegate leak $(data)/verl_logits'
	@$(BUILD)/cli/tidegate leak $(data)/verl_logits

check:
	@tools/setup check
	@tools/configure $(BUILD) -Dtests=enabled
	@ninja --quiet -C $(BUILD)
	@tools/run-tests $(BUILD) --pytest $(python) -- test/py

# What `make check` shows with stubs, with the real torch under verl.
check-verl:
	@tools/setup torch
	@tools/configure $(BUILD) -Dtests=enabled
	@ninja --quiet -C $(BUILD)
	@TIDEGATE_TEST_TORCH=1 $(python) -m pytest test/py/test_verl_seams.py \
	    test/py/test_verl_versions.py test/py/test_torch_names.py test/py/test_guide.py \
	    test/py/test_torch_hostcopies.py test/py/test_torch_offloading.py -k torch

# What `make check` skips where the wheels are not: the engines' own files over the stand-ins.
check-engines:
	@tools/setup engines
	@tools/configure $(BUILD) -Dtests=enabled
	@ninja --quiet -C $(BUILD)
	@$(python) -m pytest test/py/test_vllm_engine.py test/py/test_vllm_verl.py \
	    test/py/test_memory_saver.py test/py/test_sglang_engine.py test/py/test_enable.py

# What `make check` skips where Ray is not: a cluster of one node, on this machine.
check-ray:
	@tools/setup ray
	@tools/configure $(BUILD) -Dtests=enabled
	@ninja --quiet -C $(BUILD)
	@$(python) -m pytest test/py/test_ray.py

# gcc's runtime, so that a machine needs no second compiler; clang's is what `make fuzz` runs on.
check-san:
	@tools/setup check
	@tools/configure $(BUILD)-san -Dtests=enabled -Db_sanitize=address,undefined \
	    -Db_lundef=false -Dc_args=-fno-sanitize-recover=all
	@ninja --quiet -C $(BUILD)-san
	@tools/run-tests $(BUILD)-san --pytest $(python) -- test/py -m 'not slow'

soak:
	@tools/setup check
	@tools/configure $(BUILD) -Dtests=enabled
	@ninja --quiet -C $(BUILD) test/multi/soak
	@$(BUILD)/test/multi/soak --seconds $(SOAK_SECONDS)

bench:
	@tools/setup build
	@tools/configure $(BUILD)
	@bench/run --build $(BUILD) $(BENCH)

fuzz:
	@tools/setup fuzz
	@CC=clang tools/configure $(BUILD)-fuzz -Dfuzz=true -Dtests=disabled \
	    -Db_sanitize=address,undefined -Db_lundef=false -Dc_args=-fno-sanitize-recover=all
	@ninja --quiet -C $(BUILD)-fuzz test/fuzz/fuzz_snapshot
	@mkdir -p .cache/fuzz # what is found in one run starts the next
	$(BUILD)-fuzz/test/fuzz/fuzz_snapshot .cache/fuzz test/fuzz/corpus \
	    -max_total_time=$(FUZZ_SECONDS) -timeout=10 -rss_limit_mb=2048 -verbosity=1 \
	    -dict=test/fuzz/snapshot.dict -print_final_stats=1 -artifact_prefix=$(BUILD)-fuzz/

model:
	@tools/setup model
	@test/model/run

wheel:
	@tools/setup wheel
	@tools/wheel

install:
	@tools/setup build
	@tools/configure $(BUILD) -Dprefix=$(PREFIX)
	@meson install -C $(BUILD)

clean:
	rm -rf build build-* dist
