# SPDX-License-Identifier: Apache-2.0
"""The public headers in the words of ctypes: structs and functions of libtidegate.so.

Handles are void pointers. test/py/test_abi.py compiles a program that compares every size and
offset here with the headers, and counts the arguments of every function."""

from __future__ import annotations

import ctypes
from ctypes import (POINTER, c_char, c_char_p, c_double, c_int, c_int32, c_int64, c_size_t,
                    c_ssize_t, c_uint8, c_uint32, c_uint64, c_void_p)
from typing import Any, Dict, Tuple, Type

LEDGER_DEVICES = 16
LEDGER_TENANTS = 64
TENANT_TAGS = 16
TENANT_NAME_BYTES = 48
TENANT_ROLE_BYTES = 16
TENANT_SEAMS_BYTES = 48
TAG_NAME_BYTES = 32
MODES = ("none", "off", "observe", "on")
MODE_NONE, MODE_OFF, MODE_OBSERVE, MODE_ON = range(len(MODES))
START_NONE, START_UP, START_GIVING = range(3)
RECEIPT_ITEMS = 24
BACKUP_NONE, BACKUP_HOST = range(2)
STOPS = ("goes on", "target met", "nothing left", "no progress", "deadline")
GO_ON, TARGET_MET, NOTHING_LEFT, NO_PROGRESS, DEADLINE = range(len(STOPS))
UNKNOWN = EVERYTHING = (1 << 64) - 1  # TG_BOUND_UNKNOWN, and the target that is all there is
GROWTH_KINDS = ("steady", "leak", "once", "bounded", "tides", "unknown")
LIST_LEAKS = 0
LIST_UNKNOWN = 3
TAG_STATES = ("awake", "draining", "saving", "asleep", "mapping", "filling", "broken")
TAG_ASLEEP = TAG_STATES.index("asleep")


class tg_error(ctypes.Structure):
    _fields_ = [("status", c_int), ("native", c_int), ("text", c_char * 240)]


class tg_item(ctypes.Structure):
    _fields_ = [("name", c_char * 40), ("size_bytes", c_uint64)]


class tg_receipt(ctypes.Structure):
    _fields_ = [("status", c_int), ("item_count", c_uint32), ("asked_bytes", c_uint64),
                ("gained_bytes", c_uint64), ("driver_bytes", c_uint64), ("copied_bytes", c_uint64),
                ("wait_ns", c_uint64), ("drain_ns", c_uint64), ("copy_ns", c_uint64),
                ("map_ns", c_uint64), ("all_ns", c_uint64), ("items", tg_item * RECEIPT_ITEMS)]


class tg_fence(ctypes.Structure):
    _fields_ = [("word", c_uint64 * 2)]


class tg_device_info(ctypes.Structure):
    _fields_ = [("uuid", c_uint8 * 16), ("name", c_char * 64), ("granule_bytes", c_uint64),
                ("can", c_uint32)]


# Of the device's table only what the package asks has a type of its own.
info_fn = ctypes.CFUNCTYPE(c_int, c_void_p, POINTER(tg_device_info))
memory_fn = ctypes.CFUNCTYPE(c_int, c_void_p, POINTER(c_uint64), POINTER(c_uint64))
fence_fn = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, POINTER(tg_fence))
wait_fn = ctypes.CFUNCTYPE(c_int, c_void_p, POINTER(tg_fence), c_uint32)
process_fn = ctypes.CFUNCTYPE(c_int, c_void_p, POINTER(c_uint64))


class tg_device_ops(ctypes.Structure):
    _fields_ = [("info", info_fn), ("memory", memory_fn), ("process", process_fn),
                ("reserve", c_void_p), ("unreserve", c_void_p), ("create", c_void_p),
                ("release", c_void_p), ("map", c_void_p), ("unmap", c_void_p),
                ("access", c_void_p), ("copy", c_void_p), ("fill", c_void_p), ("fence", fence_fn),
                ("wait", wait_fn), ("pin", c_void_p), ("export_fd", c_void_p),
                ("import_fd", c_void_p), ("queue_open", c_void_p), ("queue_close", c_void_p),
                ("unpool", c_void_p)]


class tg_tag_view(ctypes.Structure):
    _fields_ = [("name", c_char * TAG_NAME_BYTES), ("occupied_bytes", c_uint64),
                ("returnable_bytes", c_uint64), ("reserved_bytes", c_uint64),
                ("asleep_bytes", c_uint64), ("host_bytes", c_uint64)]


class tg_tenant_view(ctypes.Structure):
    _fields_ = [("name", c_char * TENANT_NAME_BYTES), ("role", c_char * TENANT_ROLE_BYTES),
                ("rank", c_int32), ("pid", c_int32), ("device", c_uint32), ("id", c_uint32),
                ("mode", c_uint32), ("is_starting", c_uint32),
                ("seams", c_char * TENANT_SEAMS_BYTES), ("asked_bytes", c_uint64),
                ("is_dead", c_uint32), ("is_waiting", c_uint32),
                ("wait_tag", c_char * TAG_NAME_BYTES), ("wait_bytes", c_uint64),
                ("wait_since_ns", c_uint64), ("arrival", c_uint64),
                ("updated_ns", c_uint64), ("tag_count", c_uint32),
                ("tags", tg_tag_view * TENANT_TAGS)]


class tg_device_view(ctypes.Structure):
    _fields_ = [("uuid", c_uint8 * 16), ("name", c_char * 64), ("total_bytes", c_uint64),
                ("free_bytes", c_uint64), ("measured_ns", c_uint64),
                ("unattributed_bytes", c_uint64)]


class tg_node_view(ctypes.Structure):
    _fields_ = [("now_ns", c_uint64), ("host_bytes", c_uint64), ("device_count", c_uint32),
                ("tenant_count", c_uint32), ("devices", tg_device_view * LEDGER_DEVICES),
                ("tenants", tg_tenant_view * LEDGER_TENANTS)]


gauge_fn = ctypes.CFUNCTYPE(c_int, c_void_p, POINTER(c_uint64), POINTER(c_uint64))


class tg_gauge(ctypes.Structure):
    _fields_ = [("ask", gauge_fn), ("argument", c_void_p)]


class tg_tenant_params(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("role", c_char_p), ("rank", c_int32),
                ("uuid", POINTER(c_uint8)), ("device_name", c_char_p), ("gauge", tg_gauge)]


class tg_tenant_note(ctypes.Structure):
    _fields_ = [("mode", c_uint32), ("is_starting", c_uint32),
                ("seams", c_char * TENANT_SEAMS_BYTES)]


class tg_shortfall(ctypes.Structure):
    _fields_ = [("status", c_int), ("asked_bytes", c_uint64), ("available_bytes", c_uint64),
                ("missing_bytes", c_uint64),
                ("holder", c_char * (TENANT_NAME_BYTES + TENANT_ROLE_BYTES)),
                ("tag", c_char * TAG_NAME_BYTES), ("holder_bytes", c_uint64),
                ("unattributed_bytes", c_uint64), ("orphaned_bytes", c_uint64)]


class tg_share(ctypes.Structure):
    _fields_ = [("tag", c_char_p), ("size_bytes", c_uint64)]


class tg_tag_params(ctypes.Structure):
    _fields_ = [("backup", c_int), ("packed", c_int), ("fill_none", c_int), ("keep_host", c_int),
                ("checked", c_int)]


class tg_range(ctypes.Structure):
    _fields_ = [("addr", c_uint64), ("size_bytes", c_uint64)]


class tg_tag_info(ctypes.Structure):
    _fields_ = [("state", c_int), ("block_count", c_uint64), ("size_bytes", c_uint64),
                ("device_bytes", c_uint64), ("host_bytes", c_uint64), ("limbo_bytes", c_uint64),
                ("trimmed_bytes", c_uint64)]


class tg_hostmem_info(ctypes.Structure):
    _fields_ = [("bytes", c_void_p), ("size_bytes", c_uint64), ("is_pinned", c_int)]


class tg_source(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("bound_bytes", c_uint64), ("cost_ns", c_uint64),
                ("promised_bytes", c_uint64), ("gained_bytes", c_uint64),
                ("last_gain_bytes", c_uint64), ("residue_bytes", c_uint64), ("runs", c_uint32),
                ("misses", c_uint32), ("rests", c_uint32), ("runs_now", c_uint32),
                ("gained_now_bytes", c_uint64), ("spent_now_ns", c_uint64)]


class tg_reclaim(ctypes.Structure):
    _fields_ = [("target_bytes", c_uint64), ("min_gain_bytes", c_uint64), ("now_ns", c_uint64),
                ("deadline_ns", c_uint64), ("gained_bytes", c_uint64), ("runs", c_uint32),
                ("idle_runs", c_uint32)]


class tg_source_run(ctypes.Structure):
    _fields_ = [("free_before_bytes", c_uint64), ("free_after_bytes", c_uint64),
                ("freed_bytes", c_uint64), ("bound_after_bytes", c_uint64),
                ("spent_ns", c_uint64)]


class tg_growth(ctypes.Structure):
    _fields_ = [("kind", c_int), ("bytes_per_step", c_double), ("confidence", c_double),
                ("first_point", c_uint32), ("points_grown", c_uint32)]


class tg_leak_input(ctypes.Structure):
    _fields_ = [("digest", c_void_p), ("rank", c_int64), ("pid", c_int64), ("first_step", c_int64),
                ("last_step", c_int64), ("family", c_int32), ("is_oom", c_uint32),
                ("run", c_int32)]


class tg_leak_params(ctypes.Structure):
    _fields_ = [("own", POINTER(c_char_p)), ("own_count", c_size_t),
                ("min_bytes_per_step", c_uint64)]


class tg_leak_frame(ctypes.Structure):
    _fields_ = [("file", c_char_p), ("function", c_char_p), ("line", c_uint32)]


class tg_leak_site(ctypes.Structure):
    _fields_ = [("kind", c_int), ("bytes_per_step", c_double), ("blocks_per_step", c_double),
                ("confidence", c_double), ("bytes", c_uint64), ("blocks", c_uint64),
                ("steps_grown", c_size_t), ("first_step", c_int64), ("where", c_char_p),
                ("stack", POINTER(tg_leak_frame)), ("stack_count", c_size_t),
                ("own_frame", c_size_t), ("ranks", POINTER(c_int64)), ("rank_count", c_size_t)]


_NUMBER = POINTER(c_uint64)

# Name: (what it returns, what it takes).
FUNCTIONS: Dict[str, Tuple[Any, Tuple[Any, ...]]] = {
    "tg_version": (c_char_p, ()),
    "tg_last_error": (POINTER(tg_error), ()),
    "tg_error_text": (c_char_p, (c_int,)),
    "tg_device_open": (c_int, (c_char_p, POINTER(c_void_p))),
    "tg_device_ops": (POINTER(tg_device_ops), (c_void_p,)),
    "tg_device_uri": (c_char_p, (c_void_p,)),
    "tg_device_choose": (c_int, (c_char_p, c_size_t)),
    "tg_device_close": (None, (c_void_p,)),
    "tg_ledger_open": (c_int, (c_char_p, POINTER(c_void_p))),
    "tg_ledger_open_reader": (c_int, (c_char_p, POINTER(c_void_p))),
    "tg_ledger_close": (None, (c_void_p,)),
    "tg_ledger_read": (c_int, (c_void_p, POINTER(tg_node_view))),
    "tg_ledger_join": (c_int, (c_void_p, POINTER(tg_tenant_params), POINTER(c_void_p))),
    "tg_tenant_leave": (None, (c_void_p,)),
    "tg_tenant_check": (c_int, (c_void_p,)),
    "tg_tenant_check_quiet": (c_int, (c_void_p, c_uint32)),
    "tg_tenant_id": (c_uint32, (c_void_p,)),
    "tg_tenant_declare": (None, (c_void_p, c_char_p, c_uint64, c_uint64)),
    "tg_tenant_measure": (c_int, (c_void_p,)),
    "tg_tenant_note": (None, (c_void_p, POINTER(tg_tenant_note))),
    "tg_tenant_ask": (c_int, (c_void_p, c_uint64, POINTER(c_uint32))),
    "tg_tenant_asked": (c_uint64, (c_void_p,)),
    "tg_reclaim_target": (c_int, (POINTER(tg_node_view), c_char_p, c_char_p, c_uint32, _NUMBER,
                                  _NUMBER)),
    "tg_tenant_reserve": (c_int, (c_void_p, c_char_p, c_uint64, c_uint32)),
    "tg_tenant_reserve_all": (c_int, (c_void_p, POINTER(tg_share), c_uint32, c_uint32)),
    "tg_tenant_shortfall": (None, (c_void_p, POINTER(tg_shortfall))),
    "tg_tenant_commit": (None, (c_void_p, c_char_p, c_uint64, c_uint64)),
    "tg_tenant_cancel": (None, (c_void_p, c_char_p, c_uint64)),
    "tg_tenant_give": (None, (c_void_p, c_char_p, c_uint64, c_uint64)),
    "tg_tenant_forget": (None, (c_void_p, c_char_p, c_uint64)),
    "tg_memory_open": (c_int, (c_void_p, c_void_p, POINTER(c_void_p))),
    "tg_memory_close": (None, (c_void_p,)),
    "tg_tag_open": (c_int, (c_void_p, c_char_p, POINTER(tg_tag_params), POINTER(c_void_p))),
    "tg_memory_tag": (c_void_p, (c_void_p, c_uint32)),
    "tg_tag_name": (c_char_p, (c_void_p,)),
    "tg_tag_info": (None, (c_void_p, POINTER(tg_tag_info))),
    "tg_tag_alloc": (c_int, (c_void_p, c_uint64, POINTER(c_void_p))),
    "tg_memory_free": (c_int, (c_void_p, c_void_p, c_void_p)),
    "tg_memory_repack": (c_int, (c_void_p, c_char_p, c_uint32, POINTER(tg_receipt))),
    "tg_memory_trim": (c_int, (c_void_p, POINTER(tg_range), c_size_t, c_uint32,
                               POINTER(tg_receipt))),
    "tg_memory_refill": (c_int, (c_void_p, c_uint32, POINTER(tg_receipt))),
    "tg_memory_sleep": (c_int, (c_void_p, c_char_p, c_uint32, POINTER(tg_receipt))),
    "tg_memory_sleep_drop": (c_int, (c_void_p, c_char_p, c_char_p, c_uint32,
                                     POINTER(tg_receipt))),
    "tg_memory_prepare": (c_int, (c_void_p, c_char_p, POINTER(tg_receipt))),
    "tg_memory_wake": (c_int, (c_void_p, c_char_p, c_uint32, POINTER(tg_receipt))),
    "tg_memory_wake_try": (c_int, (c_void_p, c_char_p, c_uint32, POINTER(tg_receipt))),
    "tg_memory_wake_end": (None, (c_void_p, c_int)),
    "tg_memory_find": (c_int, (c_void_p, c_void_p, POINTER(c_void_p), POINTER(c_void_p),
                               _NUMBER)),
    "tg_process_device": (c_int, (c_int, POINTER(c_void_p))),
    "tg_process_introduce": (c_int, (c_char_p, c_char_p)),
    "tg_process_tenant": (c_int, (c_int, POINTER(c_void_p))),
    "tg_process_memory": (c_int, (c_int, POINTER(c_void_p))),
    "tg_process_gpus": (c_uint64, ()),
    "tg_process_tag": (c_int, (c_int, c_char_p, POINTER(c_void_p))),
    "tg_process_serve": (None, (c_int,)),
    "tg_scope_push": (c_int, (c_void_p,)),
    "tg_scope_pop": (c_int, ()),
    "tg_torch_alloc": (c_void_p, (c_ssize_t, c_int, c_void_p)),
    "tg_torch_free": (None, (c_void_p, c_ssize_t, c_int, c_void_p)),
    "tg_memory_hostcopy": (c_int, (c_void_p, c_void_p, POINTER(c_void_p), _NUMBER)),
    "tg_hostmem_alloc": (c_int, (c_void_p, c_char_p, c_uint64, POINTER(c_void_p))),
    "tg_hostmem_touch": (c_int, (c_void_p, c_uint32)),
    "tg_hostmem_pin": (c_int, (c_void_p, c_void_p)),
    "tg_hostmem_info": (None, (c_void_p, POINTER(tg_hostmem_info))),
    "tg_hostmem_free": (None, (c_void_p,)),
    "tg_reclaim_begin": (None, (POINTER(tg_reclaim), POINTER(tg_source), c_uint32)),
    "tg_reclaim_next": (c_int, (POINTER(tg_reclaim), POINTER(tg_source), c_uint32,
                                POINTER(c_uint32))),
    "tg_reclaim_book": (None, (POINTER(tg_reclaim), POINTER(tg_source), POINTER(tg_source_run))),
    "tg_stop_text": (c_char_p, (c_int,)),
    "tg_snapshot_parse": (c_int, (c_void_p, c_size_t, POINTER(c_void_p))),
    "tg_snapshot_close": (None, (c_void_p,)),
    "tg_digest_make": (c_int, (c_void_p, c_char_p, POINTER(c_void_p))),
    "tg_digest_close": (None, (c_void_p,)),
    "tg_leaks_find": (c_int, (POINTER(tg_leak_input), c_size_t, POINTER(tg_leak_params),
                              POINTER(c_void_p))),
    "tg_leaks_close": (None, (c_void_p,)),
    "tg_leaks_site": (POINTER(tg_leak_site), (c_void_p, c_int, c_size_t)),
    "tg_series_judge": (c_int, (_NUMBER, _NUMBER, c_size_t, POINTER(tg_growth))),
}

# Too short to be worth letting other threads of Python in between.
QUICK = frozenset({"tg_version", "tg_last_error", "tg_error_text", "tg_device_ops", "tg_device_uri",
                   "tg_series_judge", "tg_reclaim_begin", "tg_reclaim_next", "tg_reclaim_book",
                   "tg_stop_text", "tg_tenant_id", "tg_tenant_declare", "tg_tenant_note",
                   "tg_tenant_asked", "tg_reclaim_target", "tg_tenant_shortfall",
                   "tg_tenant_commit", "tg_tenant_cancel", "tg_tenant_give", "tg_tenant_forget",
                   "tg_memory_wake_end", "tg_memory_tag", "tg_tag_name", "tg_tag_info",
                   "tg_hostmem_info", "tg_memory_find", "tg_process_gpus", "tg_process_serve",
                   "tg_scope_push", "tg_scope_pop"})


def structs() -> Dict[str, Type[ctypes.Structure]]:
    """Every struct above, by its name in the headers."""
    return {name: value for name, value in globals().items()
            if isinstance(value, type) and issubclass(value, ctypes.Structure)}
