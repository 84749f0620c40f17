# SPDX-License-Identifier: Apache-2.0
"""Seeded generator of PyTorch memory snapshots with known answers.

    stacks      frames and stacks, shared between events as torch shares them
    allocator   the caching allocator in miniature: segments, blocks, history
    program     a training loop that runs on it
    kinds       what a program may keep from step to step: leaks, caches, tides
    plant       programs, kinds and file layouts put together, the answer beside the files
    forms       the shapes that snapshots had in torch's versions
    jitform     the bytes of torch's C++ writer
    samples     single snapshots with everything in them, for the reader
    hostile     bytes that no honest writer makes

Files too large to hold come from bench/big_snapshot.py, which writes them as a stream.

Everything is a function of its seed; nothing here imports torch or tidegate.
"""
