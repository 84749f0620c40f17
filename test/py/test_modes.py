# SPDX-License-Identifier: Apache-2.0
"""The mode, and the seams that it governs: what is replaced, where, and how it comes back."""

import asyncio
import inspect
import os
import sys
import threading
import types

import pytest

from tidegate import errors, locks, modes, seams
from tidegate.compat import engine_process


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """No mode read yet, nothing said yet; what a test installs is gone after it."""
    monkeypatch.setattr(modes, "_mode", None)
    monkeypatch.setattr(seams, "_said", set())
    monkeypatch.delenv("TIDEGATE", raising=False)
    for variable in ("RANK", "LOCAL_RANK", "TIDEGATE_NAME"):
        monkeypatch.delenv(variable, raising=False)
    yield
    seams.restore_all()


@pytest.fixture
def program(monkeypatch):
    """Two modules of another program: one defines helper, the other has taken it by name."""
    defines, takes = types.ModuleType("program_defines"), types.ModuleType("program_takes")

    def helper(size, *, force=False):
        """The original."""
        return ("theirs", size, force)

    defines.helper = takes.helper = takes.renamed = helper
    for module in (defines, takes):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return types.SimpleNamespace(defines=defines, takes=takes, original=helper)


@pytest.mark.parametrize("said, mode", [(None, "off"), ("", "off"), ("off", "off"),
                                        ("observe", "observe"), ("ON", "on"), (" on ", "on")])
def test_mode_is_what_the_environment_says(monkeypatch, capfd, said, mode):
    if said is not None:
        monkeypatch.setenv("TIDEGATE", said)
    assert modes.mode() == mode
    assert capfd.readouterr().err == ""


def test_a_bad_mode_is_off_and_said_once(monkeypatch, capfd):
    monkeypatch.setenv("TIDEGATE", "yes")
    assert [modes.mode() for _ in range(3)] == ["off"] * 3
    assert capfd.readouterr().err == ("[trainer] tidegate: TIDEGATE='yes' is no mode: off, observe "
                                      "or on; taken as off\n")


def test_the_environment_is_read_once(monkeypatch):
    assert modes.mode() == "off"
    monkeypatch.setenv("TIDEGATE", "on")
    assert modes.mode() == "off"


def test_set_mode_takes_modes_alone():
    modes.set_mode("observe")
    assert modes.mode() == "observe"
    with pytest.raises(errors.BadValue, match="observe"):
        modes.set_mode("loud")
    assert modes.mode() == "observe"


def test_a_function_is_replaced_wherever_it_is_bound(program):
    seams.install_function("helper", program.original, lambda *a, **k: "ours")
    for bound in (program.defines.helper, program.takes.helper, program.takes.renamed):
        assert bound(1) == "ours"
    assert seams.active() == ["helper"]


def test_off_puts_everything_back_also_what_was_bound_later(program, monkeypatch):
    modes.set_mode("on")
    seams.install_function("helper", program.original, lambda *a, **k: "ours")
    late = types.ModuleType("program_late")
    late.helper = program.defines.helper
    monkeypatch.setitem(sys.modules, "program_late", late)
    modes.off()
    for bound in (program.defines.helper, program.takes.helper, program.takes.renamed, late.helper):
        assert bound is program.original
    assert seams.active() == []


def test_what_somebody_else_has_put_there_stays(program):
    seams.install_function("helper", program.original, lambda *a, **k: "ours")
    program.takes.helper = another = lambda *a, **k: "another"
    seams.restore("helper")
    assert program.takes.helper is another
    assert program.defines.helper is program.original


@pytest.mark.parametrize("value", (None, True, 7, "", ()))
def test_a_value_that_others_have_too_is_put_back_where_it_was_put(program, monkeypatch, value):
    """Who else is bound to None is not bound to ours."""
    stranger = types.ModuleType("program_stranger")
    stranger.nothing = value
    monkeypatch.setitem(sys.modules, "program_stranger", stranger)
    seams.install_attribute("helper", program.defines, "helper", value)
    assert program.defines.helper is value
    seams.restore("helper")
    assert program.defines.helper is program.original and stranger.nothing is value


def test_an_attribute_of_a_class_its_own_or_inherited():
    class Base:
        def resume(self):
            return "base"

    class Adapter(Base):
        def pause(self):
            return "own"

    own = Adapter.pause
    seams.install_attribute("pause", Adapter, "pause", lambda self: "ours")
    seams.install_attribute("resume", Adapter, "resume", lambda self: "ours")
    assert (Adapter().pause(), Adapter().resume(), Base().resume()) == ("ours", "ours", "base")
    seams.restore_all()
    assert Adapter.pause is own and "resume" not in vars(Adapter)


def test_a_kept_replacement_passes_the_call_on_when_off(program):
    modes.set_mode("on")
    ours = modes.passing(program.original, lambda size, *, force=False: ("ours", size, force))
    seams.install_function("helper", program.original, ours)
    kept = program.takes.helper
    assert kept(3, force=True) == ("ours", 3, True)
    modes.off()
    assert kept(3, force=True) == ("theirs", 3, True)


def test_an_engines_method_is_replaced_once_and_passes_on_when_off():
    class Worker:
        def sleep(self):
            return ["theirs"]

    def around(original):
        return lambda self: ["ours", *original(self)]

    modes.set_mode("on")
    for _ in range(2):
        engine_process.replace_method("sleep", Worker, "sleep", around)
    kept = Worker.sleep
    assert Worker().sleep() == ["ours", "theirs"]
    modes.off()
    assert kept(Worker()) == Worker().sleep() == ["theirs"]


def test_a_replacement_has_name_signature_and_documentation(program):
    ours = modes.passing(program.original, lambda *a, **k: None)
    assert ours.__name__ == "helper" and ours.__doc__ == "The original."
    assert inspect.signature(ours) == inspect.signature(program.original)


def test_a_coroutine_function_stays_one():
    async def resume(tags):
        return ("theirs", tags)

    async def ours(tags):
        return ("ours", tags)

    seam = modes.passing(resume, ours)
    assert inspect.iscoroutinefunction(seam)
    modes.set_mode("on")
    assert asyncio.run(seam("kv_cache")) == ("ours", "kv_cache")
    modes.set_mode("off")
    assert asyncio.run(seam("kv_cache")) == ("theirs", "kv_cache")


def test_announcements_name_the_process(monkeypatch, capfd):
    monkeypatch.setenv("RANK", "3")
    seams.announce("tidegate observe: 4 of 4 seams")
    for _ in range(2):
        seams.warn_once("key", "steps aside")
    assert capfd.readouterr().err == ("[trainer rank 3] tidegate observe: 4 of 4 seams\n"
                                      "[trainer rank 3] tidegate: steps aside\n")


def test_what_is_said_is_one_line_and_harmless(capfd, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    seams.announce("torch failed: sticky\n\nasynchronously\x1b[2J, in \udc80.py\n")
    assert capfd.readouterr().err == (
        "[trainer] torch failed: sticky asynchronously?[2J, in ?.py\n")


def test_a_stderr_that_fails_is_no_error(monkeypatch):
    class Stream:
        def write(self, text):
            raise RuntimeError(text)

    monkeypatch.setattr(sys, "stderr", Stream())
    seams.announce("nobody hears this")


def test_a_closed_stderr_is_no_error(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    seams.announce("nobody hears this")


def test_a_lock_that_another_thread_holds_is_free_in_a_forked_child():
    lock, taken, leave = locks.ForkSafeLock(), threading.Event(), threading.Event()

    def hold():
        with lock:
            taken.set()
            leave.wait(30)

    holder = threading.Thread(target=hold)
    holder.start()
    assert taken.wait(30)
    child = os.fork()
    if child == 0:
        os._exit(0 if lock.acquire(timeout=5) else 1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    leave.set()
    holder.join()
    assert code == 0
