# SPDX-License-Identifier: Apache-2.0
"""Stand-ins: what other programs' memory savers are called by, over tags that sleep and wake. Each
is a module of its own; importing this imports none."""
