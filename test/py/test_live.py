# SPDX-License-Identifier: Apache-2.0
"""`tidegate status --live` on a real terminal, whose screen pyte keeps."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import threading
import time

import pyte
import pytest

from conftest import clean_env
from test_demo import place, wait_for  # noqa: F401 (fixtures)
from test_status import GIB, Node, node, status  # noqa: F401 (fixtures)

UP, DOWN, ESCAPE, ENTER = b"\033[A", b"\033OB", b"\033", b"\r"


class Terminal:
    """A program on a terminal of its own: what it shows now, and everything it wrote."""

    def __init__(self, program, arguments, rows=24, columns=100, **env):
        self.screen = pyte.Screen(columns, rows)
        self.stream = pyte.ByteStream(self.screen)
        self.written = b""
        master, slave = pty.openpty()
        self.fd = master
        self.resize(rows, columns, slave)
        self.modes = termios.tcgetattr(slave)
        self.pid = os.fork()
        if self.pid == 0:
            os.setsid()
            fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
            for number in (0, 1, 2):
                os.dup2(slave, number)
            os.execve(program, [program, *arguments], clean_env(**{"TERM": "xterm", **env}))
        self.slave = slave  # open here too, so that its modes can be asked for at the end
        self.status = None

    def resize(self, rows, columns, fd=None):
        fcntl.ioctl(self.fd if fd is None else fd, termios.TIOCSWINSZ,
                    struct.pack("HHHH", rows, columns, 0, 0))
        self.screen.resize(rows, columns)

    def read(self):
        while select.select([self.fd], [], [], 0.02)[0]:
            got = os.read(self.fd, 65536)
            self.written += got
            self.stream.feed(got)

    def lines(self):
        self.read()
        return [line.rstrip() for line in self.screen.display]

    def shows(self, pattern, seconds=60):
        """Waits until a line of the screen matches; the line."""
        found = []

        def is_there():
            found[:] = [line for line in self.lines() if re.search(pattern, line)]
            return bool(found)

        assert wait_for(is_there, seconds), "\n".join([pattern, *self.screen.display])
        return found[0]

    def lacks(self, pattern):
        """Waits until no line matches."""
        assert wait_for(lambda: not [l for l in self.lines() if re.search(pattern, l)], 60), \
            "\n".join(self.screen.display)

    def press(self, keys):
        os.write(self.fd, keys)

    def end(self):
        """Waits for its end; its exit status, or minus the signal that killed it."""
        def is_over():
            self.read()
            pid, status_ = os.waitpid(self.pid, os.WNOHANG)  # noqa: F811
            if pid == self.pid:
                self.status = os.waitstatus_to_exitcode(status_)
            return pid == self.pid

        if self.status is None:
            assert wait_for(is_over, 60)
        self.read()
        return self.status

    def is_as_before(self):
        """Modes, screen and cursor."""
        return (termios.tcgetattr(self.slave) == self.modes and
                self.written.rstrip().endswith(b"\033[?25h\033[?1049l"))

    def close(self):
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            os.kill(self.pid, signal.SIGCONT)
            os.waitpid(self.pid, 0)
        os.close(self.fd)
        os.close(self.slave)


@pytest.fixture()
def live(tidegate, place):  # noqa: F811
    """live(*args, rows=…, columns=…, NAME=…) -> Terminal"""
    made = []

    def call(*arguments, **more):
        made.append(Terminal(tidegate.program, ["status", "--live", *arguments],
                             **{"TIDEGATE_DIR": str(place), **more}))
        return made[-1]

    yield call
    for terminal in made:
        terminal.close()


def order(terminal):
    """Names of the tenants, as they stand on the page."""
    return [match.group(1) for match in (re.match(r"[> ]  ([a-z]\w*)(?: rank \d+)? .*\[", line)
                                         for line in terminal.lines()) if match]


# ---- what it shows

def test_page(live, node):  # noqa: F811
    """The device, its tenants with bars, what comes next; on the other screen, without cursor."""
    page = live()
    device = page.shows(r"^ 0 H200 ")
    assert re.search(r"\[#+=+\.+\] used 86 GiB of 140 GiB  free 54 GiB  u", device)
    trainer = page.shows(r"^   trainer rank 0 +observe \[#+=+\.+\] 68\.1 GiB")
    assert len(re.search(r"\[.*\]", trainer).group()) == 27
    assert trainer.count("#") + trainer.count("=") == round(68.1 / 140 * 25)
    page.shows(r"^   sglang +on +\[###\.+\] 17\.3 GiB  asleep 61 GiB")
    page.shows(r"^   next: wake kv_cache needs 61 GiB, short by 7\.0 GiB; the trainer's cache")
    page.shows(r"^tidegate  1 device  2 tenants  waiting 0")
    assert page.written.startswith(b"\033[?1049h\033[?25l")
    assert page.screen.cursor.hidden
    page.press(b"q")
    assert page.end() == 0 and page.is_as_before()


def test_it_follows(live, node):  # noqa: F811
    """What changes is seen, what has gone is gone."""
    page = live()
    page.shows("sglang")
    node.join("drafter", 3)
    page.shows(r"drafter rank 3")
    node.call("tg_tenant_leave", node.tenants.pop("drafter"))
    page.lacks("drafter")


def test_who_waits_since_when(live, library, node):  # noqa: F811
    """On the tenant's line and below the device."""
    node.measure("trainer", 10)
    waiter = threading.Thread(target=lambda: library.functions()["tg_tenant_reserve"](
        node.tenants["sglang"], b"kv_cache", 60 * GIB, 120000))
    waiter.start()
    try:
        page = live()
        page.shows(r"sglang .* waits \d+(\.\d)? s")
        page.shows(r"^   next: sglang waits for kv_cache 60 GiB, since \d+(\.\d)? s")
        page.shows("waiting 1 ")
    finally:
        node.free_bytes = 120 * GIB
        waiter.join()
        node.call("tg_tenant_cancel", node.tenants["sglang"], b"kv_cache", 60 * GIB)


def test_nobody(live, place):  # noqa: F811
    """Said, also where there is no ledger yet; and it is noticed when there is one."""
    page = live(columns=200)
    page.shows(rf"no program uses Tidegate on this machine \(no ledger in {place}\)")


def test_nobody_then_somebody(live, library, place):  # noqa: F811
    """The page waits for the first program."""
    page = live()
    page.shows("no program uses Tidegate")
    made = Node(library, place)
    made.join("trainer", 0)
    page.shows("trainer rank 0")
    page.lacks("no program uses")
    made.close()
    page.shows("no program uses Tidegate")


def test_trouble_is_told_on_the_page(live, node, place):  # noqa: F811
    """A ledger that nobody may believe; and then one that can be read again."""
    page = live()
    page.shows("sglang")
    place.chmod(0o777)
    page.shows(re.escape(str(place))[:40])
    place.chmod(0o700)
    page.shows("sglang")


# ---- keys

def test_sorted(live, node):  # noqa: F811
    """As they joined, by memory, by wait, by name, and round again."""
    node.join("astral")
    node.declare("astral", b"live", 90)
    page = live()
    page.shows("astral")
    assert order(page) == ["trainer", "sglang", "astral"]
    for sort, names in (("memory", ["astral", "trainer", "sglang"]), ("wait", None),
                        ("name", ["astral", "sglang", "trainer"]),
                        ("as joined", ["trainer", "sglang", "astral"])):
        page.press(b"s")
        page.shows(f"s sort: {sort} ")
        assert names is None or order(page) == names


def test_a_tenant_is_opened(live, node):  # noqa: F811
    """Its tags, seams and pid; another one with the arrows; back with Esc."""
    page = live()
    page.shows("sglang")
    page.press(DOWN)
    page.shows("^>  trainer rank 0")
    page.press(ENTER)
    page.shows(r"^trainer rank 0  on device 0 H200")
    page.shows(rf"pid {os.getpid()}  mode observe  seams verl 0\.9\.1: 4 of 4  as of")
    page.shows(r"^  cached +46\.9 GiB +46\.3 GiB +0 B +0 B +0 B")
    page.press(DOWN)
    page.shows(r"^sglang  on device 0 H200")
    page.shows(r"^  kv_cache +0 B +0 B +0 B +61 GiB +0 B")
    page.press(UP)
    page.shows(r"^trainer rank 0  on device")
    page.press(ESCAPE)
    page.shows("^>  trainer rank 0")
    page.press(b"\033[B")
    page.shows("^>  sglang")


def test_an_open_tenant_leaves(live, node):  # noqa: F811
    """Said, and the list is there again with Esc."""
    page = live()
    page.shows("sglang")
    page.press(DOWN + DOWN + ENTER)
    page.shows("^sglang  on device")
    node.call("tg_tenant_leave", node.tenants.pop("sglang"))
    page.shows("^sglang has left")
    page.press(ESCAPE)
    page.shows("trainer rank 0")


def test_keys_that_mean_nothing(live, node):  # noqa: F811
    """Change nothing, end nothing."""
    page = live()
    page.shows("sglang")
    page.press(b"x\033[5~\033[6~\t\0")
    page.press(b"s")
    page.shows("sort: memory")
    page.press(b"q")
    assert page.end() == 0


# ---- size

def test_resized(live, node):  # noqa: F811
    """Wider, narrower: lines are cut and never wrap; a tiny terminal harms nothing."""
    page = live(columns=60)
    page.shows("sglang")
    assert not any("unattributed 614" in line for line in page.lines())
    page.resize(24, 140)
    page.shows("unattributed 614 MiB")
    for rows, columns, pattern in ((5, 20, "^q quit"), (2, 10, "^ 0 H200"), (1, 2, "^ 0"),
                                   (3, 300, "^q quit .* unattributed$")):
        page.resize(rows, columns)
        page.shows(pattern)
    page.resize(24, 100)
    page.shows("sglang .* asleep 61 GiB")
    assert page.lines()[0].startswith("tidegate") and page.lines()[-1].startswith("q quit")


def test_long_lists_scroll(live, node):  # noqa: F811
    """The chosen tenant is always on the screen."""
    for number in range(30):
        node.join(f"engine{number}")
    page = live(rows=12)
    page.shows("engine2 ")
    assert not any("engine29" in line for line in page.lines())
    page.press(DOWN * 40)
    page.shows("^>  engine29 ")
    page.press(UP * 40)
    page.shows("^>  trainer rank 0")
    page.shows("^tidegate")
    page.shows("^q quit")


# ---- colour

def test_colour(live, node):  # noqa: F811
    """The bar is green where memory is awake."""
    page = live()
    page.shows("sglang")
    assert b"\033[32m#" in page.written


@pytest.mark.parametrize("arguments, env", (((), {"NO_COLOR": "1"}), (("--no-colour",), {})))
def test_no_colour(live, node, arguments, env):  # noqa: F811
    """No style at all; what is chosen is still marked."""
    page = live(*arguments, **env)
    page.shows("sglang")
    page.press(DOWN)
    page.shows("^>  trainer")
    assert not re.search(rb"\033\[[\d;]*m", page.written)


# ---- the terminal afterwards

@pytest.mark.parametrize("number", (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT))
def test_signals_restore(live, node, number):  # noqa: F811
    """Modes, screen and cursor are as they were."""
    page = live()
    page.shows("sglang")
    assert termios.tcgetattr(page.slave) != page.modes
    os.kill(page.pid, number)
    assert page.end() == 0 and page.is_as_before()


def test_stopped_and_continued(live, node):  # noqa: F811
    """After SIGSTOP and SIGCONT the page is there again, as one asks a shell for it."""
    page = live()
    page.shows("sglang")
    os.kill(page.pid, signal.SIGSTOP)
    assert os.waitpid(page.pid, os.WUNTRACED)[0] == page.pid
    termios.tcsetattr(page.slave, termios.TCSANOW, page.modes)  # as a shell does
    page.read()
    entered = page.written.count(b"\033[?1049h")
    os.kill(page.pid, signal.SIGCONT)
    assert wait_for(lambda: page.read() or page.written.count(b"\033[?1049h") > entered, 60)
    page.press(b"s")  # without Enter
    page.shows("sort: memory")


def test_terminal_gone(live, node):  # noqa: F811
    """It ends when nobody can see it."""
    page = live()
    page.shows("sglang")
    master = page.fd
    page.fd = os.open("/dev/null", os.O_RDONLY)
    os.close(page.slave)
    os.close(master)
    page.slave = os.open("/dev/null", os.O_RDONLY)
    assert wait_for(lambda: os.waitpid(page.pid, os.WNOHANG)[0] == page.pid, 60)
    page.status = 0


def test_refused_elsewhere(status, node):  # noqa: F811
    """One clear sentence, and what to do instead."""
    result = status("--live")
    assert result.status == 2 and result.out == ""
    assert len(result.err.splitlines()) == 1 and "--json --live" in result.err


def test_refused_on_a_dumb_terminal(live, node):  # noqa: F811
    """One that knows no codes gets none."""
    page = live(TERM="dumb")
    assert page.end() == 2
    assert b"\033" not in page.written and b"--live" in page.written


def test_quick_on_a_full_node(live, library, node, status):  # noqa: F811
    """Eight devices and 64 tenants: all are there, by way of the keys."""
    for number in range(62):
        node.uuid = (type(node.uuid))(*(b"card %11d" % (number % 7)))
        node.join(f"rank{number}", number)
    page = live(rows=100, columns=120)
    page.shows("64 tenants")
    page.shows("8 devices")
    page.shows("rank61 rank 61")
    assert len(order(page)) == 64
