# SPDX-License-Identifier: Apache-2.0
"""`tidegate status --metrics`: the same truth as --json, in Prometheus' text format."""

import functools
import http.server
import json
import os
import re
import socket
import stat
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections import defaultdict

import pytest
from prometheus_client.parser import text_string_to_metric_families

from conftest import ROOT, clean_env
from test_demo import SMALL, place, running, wait_for  # noqa: F401 (fixtures)
from test_status import GIB, begun, node, status, still  # noqa: F401 (fixtures)

PROMETHEUS = ROOT / ".cache/prometheus"
BOARD = ROOT / "doc/grafana/tidegate.json"
MOMENT = "_timestamp_seconds"


@pytest.fixture()
def prometheus():
    """Where Prometheus and promtool are."""
    if not PROMETHEUS.is_dir():
        pytest.skip(f"no Prometheus in {PROMETHEUS}: tools/setup ci unpacks it")
    return PROMETHEUS


def families_of(text):
    """{name: {labels: value}}; no name, and no series, twice."""
    families = {}
    for family in text_string_to_metric_families(text):
        assert family.name not in families and family.type == "gauge" and family.documentation
        samples = families[family.name] = {}
        for sample in family.samples:
            labels = frozenset(sample.labels.items())
            assert sample.name == family.name and labels not in samples, sample
            samples[labels] = sample.value
    return families


def expected_of(answer):
    """The same from --json; ages instead of moments."""
    families = defaultdict(lambda: defaultdict(int))

    def put(metric, value, *labels, **more):
        samples = families["tidegate_" + metric]
        key = frozenset((*labels, *more.items()))
        if metric.endswith(MOMENT):  # the latest change
            samples[key] = min(value, samples.get(key, value))
        else:
            samples[key] += value

    put("ledger_present", int(answer["ledger"]))
    put("host_reserved_bytes", answer["host_bytes"])
    places = [(("device", str(index)), ("uuid", device["uuid"]))
              for index, device in enumerate(answer["devices"])]
    for where, device in zip(places, answer["devices"]):
        put("device_info", 1, *where, name=device["name"])
        if device["total_bytes"] is not None:
            put("device_capacity_bytes", device["total_bytes"], *where)
            put("device_free_bytes", device["free_bytes"], *where)
            put("device_unattributed_bytes", device["unattributed_bytes"], *where)
            put("device_measured" + MOMENT, device["age_s"], *where)
        for wake in device["wakes"]:
            for figure in ("asleep_bytes", "short_bytes", "returnable_bytes"):
                put("wake_" + figure, wake[figure], *where, tag=wake["tag"])
    for tenant in answer["tenants"]:
        who = (*places[tenant["device"]], ("tenant", tenant["name"]))
        if tenant["rank"] is not None:
            who += (("rank", str(tenant["rank"])),)
        state = "dead" if tenant["dead"] else "starting" if tenant["starting"] else "running"
        for each in ("dead", "starting", "running"):
            put("tenants", int(each == state), *who, state=each)
        put("tenant_info", 1, *who, role=tenant["role"] or "", pid=str(tenant["pid"]),
            mode=tenant["mode"] or "", seams=tenant["seams"] or "")
        put("tenant_asked_bytes", tenant["asked_bytes"], *who)
        put("tenant_updated" + MOMENT, tenant["age_s"], *who)
        wait = tenant["waits_for"]
        if wait is not None:
            put("tenant_wait_bytes", wait["bytes"], *who, tag=wait["tag"])
            put("tenant_wait_start" + MOMENT, wait["since_s"], *who, tag=wait["tag"])
        for tag in tenant["tags"]:
            here = (*who, ("tag", tag["name"]))
            for each in ("awake", "orphaned"):
                is_it = (each == "orphaned") == tenant["dead"]
                put("tag_bytes", tag["awake_bytes"] if is_it else 0, *here, state=each)
            put("tag_bytes", tag["reserved_bytes"], *here, state="reserved")
            put("tag_bytes", tag["asleep_bytes"], *here, state="asleep")
            put("tag_returnable_bytes", tag["returnable_bytes"], *here)
            put("tag_host_bytes", tag["host_bytes"], *here)
    return families


def compare(status):  # noqa: F811
    """Every figure of one is in the other."""
    before = time.time()
    answer = status("--json").json()
    between = time.time()
    families = families_of(status("--metrics", "-").out)
    after = time.time()
    is_asked_anew = any(tenant["waits_for"] for tenant in answer["tenants"])  # the driver
    assert families.pop("tidegate_build_info")
    expected = expected_of(answer)
    assert {name for name in families if families[name]} == set(expected)
    for name, samples in expected.items():
        assert set(families[name]) == set(samples), name
        for labels, value in samples.items():
            found = families[name][labels]
            if name.endswith(MOMENT):  # the JSON was read between the two looks at the clock
                latest = between - value
                if is_asked_anew and name == "tidegate_device_measured" + MOMENT:
                    latest = after
                assert before - value - 0.01 <= found <= latest + 0.01, (name, labels)
            else:
                assert found == value, (name, labels)
    return families


# ---- the same truth

def test_no_ledger(status, place):  # noqa: F811
    """An answer, and nothing is made."""
    families = families_of(status("--metrics", "-").out)
    assert families["tidegate_ledger_present"] == {frozenset(): 0}
    assert not place.exists()


def test_first_minutes(node, status):  # noqa: F811
    """Figure by figure: awake, cached, asleep, the next wake."""
    families = compare(status)
    short, = families["tidegate_wake_short_bytes"].values()
    assert short == 7 * GIB
    asleep = [value for labels, value in families["tidegate_tag_bytes"].items()
              if {("tag", "kv_cache"), ("state", "asleep")} <= labels]
    assert asleep == [61 * GIB]


def test_starting_and_asked(node, status):  # noqa: F811
    """States are told apart, requests told."""
    import ctypes
    node.note("sglang", node.abi.MODE_ON, starting=1)
    node.call("tg_tenant_ask", node.tenants["sglang"], 7 * GIB, ctypes.byref(ctypes.c_uint32()))
    families = compare(status)
    assert 7 * GIB in families["tidegate_tenant_asked_bytes"].values()
    assert [dict(labels)["tenant"] for labels, value in families["tidegate_tenants"].items()
            if ("state", "starting") in labels and value == 1] == ["sglang"]


def test_a_running_demo(running, status):  # noqa: F811
    """Two processes, at a moment of their turns; one of them waits in some."""
    child = begun(running)
    still(child)
    compare(status)
    still(child, False)


def test_waiters(library, node, status):  # noqa: F811
    """For how much, since when."""
    waiter = threading.Thread(target=lambda: library.functions()[
        "tg_tenant_reserve"](node.tenants["sglang"], b"kv_cache", 60 * GIB, 60000))
    node.measure("trainer", 10)
    waiter.start()
    try:
        assert wait_for(lambda: any(t["waits_for"] for t in status("--json").json()["tenants"]))
        families = compare(status)
        bytes_, = families["tidegate_tenant_wait_bytes"].values()
        assert bytes_ == 60 * GIB
    finally:
        node.free_bytes = 120 * GIB
        waiter.join()
        node.call("tg_tenant_cancel", node.tenants["sglang"], b"kv_cache", 60 * GIB)


def test_same_names_are_one_series(node, status):  # noqa: F811
    """Their figures are summed: a series may not be there twice."""
    first = node.tenants["sglang"]
    node.join("sglang")
    node.declare("sglang", b"weights", 5)
    node.declare("sglang", b"drafts", 1)
    node.tenants["the first sglang"] = first
    node.measure("trainer", 40)
    families = compare(status)
    weights = [value for labels, value in families["tidegate_tag_bytes"].items()
               if {("tag", "weights"), ("state", "awake")} <= labels]
    assert weights == [int(14.2 * GIB) + 5 * GIB]


def test_label_values_are_escaped(node, status):  # noqa: F811
    """Quotes and backslashes of other programs end no label."""
    node.join('a"b\\n{c="d"}')
    node.declare('a"b\\n{c="d"}', b'\\"}', 1)
    node.note("sglang", node.abi.MODE_ON, seams=b'1" 2\\ 3\n')
    text = status("--metrics", "-").out
    families = compare(status)
    assert 'tenant="a\\"b\\\\n{c=\\"d\\"}"' in text
    assert any(("seams", '1" 2\\ 3?') in labels for labels in families["tidegate_tenant_info"])


# ---- the format

def test_promtool(prometheus, node, status):  # noqa: F811
    """It finds nothing: neither faults nor names against the rules."""
    checked = subprocess.run([prometheus / "promtool", "check", "metrics"], text=True,
                             input=status("--metrics", "-").out, capture_output=True, check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def test_names_have_units(node, status):  # noqa: F811
    """Base units, and no ending that Prometheus keeps for counters and histograms."""
    for name in families_of(status("--metrics", "-").out):
        ending = "(_bytes|_timestamp_seconds|_info|_present|_tenants)"
        assert re.fullmatch("tidegate(_[a-z]+)*" + ending, name), name


# ---- the file

def test_file_is_replaced_whole(node, status, tmp_path):  # noqa: F811
    """Readable for the collector's user; a link stays one; nothing is left beside it."""
    real, link = tmp_path / "real.prom", tmp_path / "link.prom"
    real.write_text("old")
    link.symlink_to("real.prom")
    number = real.stat().st_ino
    umask = os.umask(0o022)
    try:
        result = status("--metrics", link)
    finally:
        os.umask(umask)
    assert (result.status, result.out, result.err) == (0, "", "")
    assert link.is_symlink() and real.stat().st_ino != number
    assert stat.S_IMODE(real.stat().st_mode) == 0o644
    assert families_of(real.read_text())["tidegate_wake_short_bytes"]
    assert sorted(tmp_path.glob("*.prom")) == [link, real]
    assert not list(tmp_path.glob(".*"))


def test_always_whole(node, status, tmp_path):  # noqa: F811
    """Who reads while it is written sees one answer or the other."""
    path = tmp_path / "node.prom"
    status("--metrics", path)
    is_over, seen = threading.Event(), []

    def read():
        while not is_over.is_set():
            seen.append(path.read_text())

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for _ in range(30):
            assert status("--metrics", path).status == 0
    finally:
        is_over.set()
        reader.join()
    assert seen and all(text.count("# TYPE tidegate_tag_host_bytes") == 1 and text[-1] == "\n"
                        for text in seen)


@pytest.mark.parametrize("make, words", (
    (lambda p: p.mkdir(), "no file"), (os.mkfifo, "no file"),
))
def test_what_is_no_file_stays(node, status, tmp_path, make, words):  # noqa: F811
    """A pipe or a folder is not replaced."""
    path = tmp_path / "there"
    make(path)
    kind = stat.S_IFMT(path.stat().st_mode)
    result = status("--metrics", path)
    assert result.status == 2 and words in result.err and len(result.err.splitlines()) == 1
    assert stat.S_IFMT(path.stat().st_mode) == kind


@pytest.mark.parametrize("blocks, is_long", ((1, True), (0, False)))
def test_full_disk_keeps_the_old(tidegate, node, place, tmp_path, blocks, is_long):  # noqa: F811
    """A file that cannot be written whole, or whose last bytes fail, does not get its place."""
    path = tmp_path / "node.prom"
    path.write_text("old")
    shell = f'trap "" XFSZ; ulimit -f {blocks}; exec "$0" status --metrics "$1"'
    env = clean_env(TIDEGATE_DIR=str(place if is_long else tmp_path / "nobody"))
    result = subprocess.run(["bash", "-c", shell, tidegate.program, path], env=env, text=True,
                            capture_output=True, check=False)  # pipes: the limit is of files
    assert result.returncode == 2 and str(path) in result.stderr
    assert path.read_text() == "old" and not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("args, words", (
    (("--metrics",), "FILE"), (("--metrics", "-", "--json"), "--json"),
    (("--metrics", "-", "--live"), "--live"), (("--metrics", "/nowhere/at/all"), "/nowhere"),
    (("--metrics="), "--metrics"),
))
def test_wrong_use(status, args, words):  # noqa: F811
    """A sentence and status 2."""
    result = status(*([args] if isinstance(args, str) else args))
    assert result.status == 2 and result.out == "" and words in result.err
    assert len(result.err.splitlines()) == 1


# ---- a server, and the board

class Quiet(http.server.SimpleHTTPRequestHandler):
    """Prometheus wants the type said."""
    extensions_map = {".prom": "text/plain; version=0.0.4"}

    def log_message(self, *_):
        pass


@pytest.fixture()
def served(node, status, tmp_path):  # noqa: F811
    """The port at which Python's server has the file."""
    assert status("--metrics", tmp_path / "node.prom").status == 0
    handler = functools.partial(Quiet, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def test_served(served, status):  # noqa: F811
    """What a scraper gets is what --metrics prints."""
    with urllib.request.urlopen(f"http://127.0.0.1:{served}/node.prom", timeout=30) as answer:
        got = families_of(answer.read().decode())
    now = families_of(status("--metrics", "-").out)
    assert got.keys() == now.keys()
    assert got["tidegate_tag_bytes"] == now["tidegate_tag_bytes"]


def board_queries():
    """What the dashboard asks Prometheus."""
    board = json.loads(BOARD.read_text(encoding="utf-8"))
    return [target["expr"] for panel in board["panels"] for target in panel["targets"]]


def test_board_names_what_is_there(node, status):  # noqa: F811
    """No panel and no variable asks for a metric that nobody writes."""
    there = set(families_of(status("--metrics", "-").out))
    named = set(re.findall(r"tidegate_\w+", BOARD.read_text(encoding="utf-8")))
    assert named and named <= there
    assert all(re.search(r"tidegate_\w+", query) for query in board_queries())


def free_port():
    """A port that nobody has now."""
    with socket.socket() as place:  # noqa: F811
        place.bind(("127.0.0.1", 0))
        return place.getsockname()[1]


def test_real_prometheus(prometheus, served, tmp_path):
    """It scrapes the file without a complaint, and answers every query of the board."""
    port = free_port()
    config = tmp_path / "prometheus.yml"
    config.write_text(f"""
scrape_configs:
  - job_name: tidegate
    scrape_interval: 1s
    metrics_path: /node.prom
    static_configs: [{{targets: ["127.0.0.1:{served}"]}}]
""")
    server = subprocess.Popen(
        [prometheus / "prometheus", f"--config.file={config}",
         f"--storage.tsdb.path={tmp_path / 'data'}", f"--web.listen-address=127.0.0.1:{port}"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def ask(query):
        url = f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode({"query": query})
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                return json.load(answer)["data"]["result"]
        except urllib.error.HTTPError as error:
            if error.code == 503:  # it starts
                return []
            return pytest.fail(f"{query}: {error.read()}")
        except OSError:
            return []

    try:
        assert wait_for(lambda: [r["value"][1] for r in ask("up")] == ["1"], 120)
        empty = []
        for query in board_queries():
            query = re.sub(r"\$(node|device)", ".*", query)
            if not ask(query):
                empty.append(re.search(r"tidegate_\w+", query).group())
        assert set(empty) <= {"tidegate_tenant_wait_bytes", "tidegate_tag_host_bytes",
                              "tidegate_tenant_wait_start_timestamp_seconds"}  # nobody waits
        short, = ask("tidegate_wake_short_bytes")
        assert int(short["value"][1]) == 7 * GIB
    finally:
        server.terminate()
        server.wait(60)
