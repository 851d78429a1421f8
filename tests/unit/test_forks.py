"""O4: a process that a run forks, whatever its threads had locked when it was forked. No Redis."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from tests.processes import run

PREFACE = """
import logging, os, signal, sys, threading
from celery_lowkiq.worker import forks
logging.basicConfig(stream=sys.stderr, format="%(levelname)s %(message)s")

def fork(function):
    child = []
    def run():
        forks.end_forks_by_signal()
        pid = os.getpid()
        def body():
            child.append(os.fork())
            return child[-1] or function()
        forks.staying(pid, body)
    lane = threading.Thread(target=run, name="lane-0 orders/7")
    lane.start()
    lane.join()
    print(os.waitstatus_to_exitcode(os.waitpid(child[-1], 0)[1]))
"""

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")


def python(script):
    done = run([sys.executable, "-c", PREFACE + script], 120)
    done.check_returncode()
    return int(done.stdout.splitlines()[-1]), done.stderr


def test_a_forked_child_ends_without_the_exit_handlers_of_its_parent():
    status, log = python("import atexit; atexit.register(lambda: print('bye', file=sys.stderr)); fork(int)")
    assert status == 70
    assert log.count("CRITICAL lane-0 orders/7: a run that began in process") == 1
    assert log.count("bye") == 1


def test_a_forked_child_ends_when_its_log_blocks():
    script = """
class Stuck(logging.Handler):
    def emit(self, record):
        threading.Event().wait()

forks.LOG_TIMEOUT = 1
forks.logger.addHandler(Stuck())
fork(int)
"""
    assert python(script)[0] == -signal.SIGALRM


def test_a_lock_that_another_thread_held_is_free():
    script = """
lock = forks.ProcessLock()
def take():
    with lock:
        os._exit(7)
with lock:
    fork(take)
"""
    assert python(script)[0] == 7


def test_stop_signals_end_a_fork_and_its_own_forks_keep_what_it_handles():
    script = """
for name in ("SIGTERM", "SIGUSR1"):
    signal.signal(getattr(signal, name), lambda *_: os._exit(9))

def handles():
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, "the worker's handler"
    assert callable(signal.getsignal(signal.SIGUSR1)), "no stop signal"
    signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
    child = os.fork()
    if not child:
        os.kill(os.getpid(), signal.SIGTERM)
        os._exit(1)
    os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

fork(handles)
"""
    assert python(script)[0] == 7


def test_stop_signals_end_the_forks_of_all_threads_of_a_process_that_leaves_them_to_its_worker():
    """A thread pool of a run, or its event loop: ``terminate()`` waited for ever."""
    script = """
import time
from celery_lowkiq.worker import forks as stop_signals
stop_signals.handle(lambda *_: None)
signal.signal(signal.SIGINT, lambda *_: os._exit(9))

def forks():
    pid = os.fork()
    if not pid:
        if not callable(signal.getsignal(signal.SIGINT)):
            os._exit(1)
        os.kill(os.getpid(), signal.SIGTERM)
        os._exit(2)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

thread = threading.Thread(target=forks)
thread.start()
thread.join()
os.kill(os.getpid(), signal.SIGTERM)
"""
    assert python(script)[0] == -signal.SIGTERM


def test_a_script_is_ready_in_a_fork_while_a_thread_of_the_worker_prepares_another_one():
    """A cached_property of Python 3.11 locks for all scripts: a call in the fork never returned."""
    script = """
from celery_lowkiq.store.script import Script, load
prepares, source = threading.Event(), Script.text

def text(self, flags):
    if self.name == "slow":
        prepares.set()
        threading.Event().wait()
    return source(self, flags)

def calls():
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(20)
    load("push").shas[True]
    os._exit(7)

Script.text = text
threading.Thread(target=lambda: Script("slow", "", (), (), "").shas[True], daemon=True).start()
prepares.wait()
fork(calls)
"""
    assert python(script)[0] == 7


def test_a_task_is_ready_in_a_fork_while_a_thread_of_the_worker_prepares_another_one():
    """The same lock, of what the publish signals are told."""
    script = """
from celery import Celery
from celery_lowkiq import ordered_task
from celery_lowkiq.integration import task as task_module

app = Celery("forks", broker="memory://", set_as_current=False)

def function(payloads_by_id):
    pass

slow, other = (ordered_task(app=app, name=name)(function) for name in ("slow", "other"))
prepares, made = threading.Event(), task_module.StoreRouter

def router(name):
    if name == "slow":
        prepares.set()
        threading.Event().wait()
    return made(name)

def calls():
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(20)
    os._exit(7 if other._router else 1)

app.finalize()
task_module.StoreRouter = router
threading.Thread(target=lambda: slow._router, daemon=True).start()
prepares.wait()
fork(calls)
"""
    assert python(script)[0] == 7
