# SPDX-License-Identifier: Apache-2.0
"""verl: where its trainer and its rollout engine hand GPU memory to each other."""
