# SPDX-License-Identifier: Apache-2.0
"""From what peers have seen to rows of results: GiB/s out and back, beside the limit and ours."""
from card_results import GIB, MIB, no_row, row

# The row of `tidegate bench sleep` that does the same, by (kind, is it the first round).
SAME = {("no backup", True): "no backup", ("no backup", False): "no backup",
        ("host, kept", False): "host, later"}


def name_of(block_bytes):
    return f"{block_bytes // GIB} GiB" if block_bytes >= GIB else f"{block_bytes // MIB} MiB"


def beside(bench, kind, block_bytes, way, is_first):
    """{"limit_gib_s", "tidegate_gib_s"} of the same run, null where it has none."""
    same = SAME.get((kind, is_first), "host, first")
    what = f"{same}, {name_of(block_bytes)} blocks: {way}"
    for one in bench.get("rows", []):
        if one["what"] == what and one["value"] is not None:
            return {"limit_gib_s": one["limit"]["median"], "limit": one["limit"]["what"],
                    "tidegate_gib_s": one["value"]["median"]}
    return {"limit_gib_s": None, "limit": None, "tidegate_gib_s": None}


def speed_row(one, bench, number, is_first):
    """Out (0) or back (1): of the first round, or of the later ones."""
    seconds = [pair[number] for pair in (one["rounds"][:1] if is_first else one["rounds"][1:])]
    name = f"{title(one)}: {('out', 'back')[number]}, {'first' if is_first else 'later'}"
    if not seconds:
        return no_row(name, "there was one round")
    there = beside(bench, one["kind"], one["block_bytes"], ("sleep", "wake")[number], is_first)
    values = [one["size_bytes"] / GIB / each for each in seconds]
    limit = there["limit_gib_s"]
    shares = None if limit is None else [value / limit for value in values]
    return row(name, "GiB/s", values, None, {"seconds": seconds, "share_of_limit": shares, **there})


def title(one):
    return f"{one['peer']}, {one['kind']}, {name_of(one['block_bytes'])} blocks"


def rows_of_peer(one, bench):
    if "reason" in one:
        return [no_row(title(one), one["reason"])]
    rows = [speed_row(one, bench, number, is_first)
            for is_first in (True, False) for number in (0, 1)]
    if one["wrong"] is not None:
        rows.append(row(f"{title(one)}: blocks that came back otherwise", f"of {one['blocks']}",
                        one["wrong"], ("==", 0)))
    return rows


def row_of_ours(one):
    name = f"tidegate {one['bench']}, {one['what']}"
    if one["value"] is None:
        return no_row(name, one["reason"])
    return row(name, one["unit"], one["value"]["median"], None,
               {"value": one["value"], "limit": one["limit"], "share_of_limit": one["ratio"]})


def rows_of_ours(bench):
    if "reason" in bench:
        return [no_row("tidegate bench", bench["reason"])]
    return [row_of_ours(one) for one in bench["rows"]]


def rows_of(seen, bench):
    rows = rows_of_ours(bench)
    for one in seen:
        rows += rows_of_peer(one, bench)
    return rows
