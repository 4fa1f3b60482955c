"""Objects that a process makes to stay are never searched for garbage. This cannot be undone, so each test has a
process."""

from __future__ import annotations

import subprocess
import sys


def run(program: str) -> str:
    head = "import gc\nfrom replicator.running.collector import made_to_stay\n"
    done = subprocess.run([sys.executable, "-c", head + program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_collector_rests_meanwhile_and_leaves_out_what_was_made() -> None:
    program = """
before, usual = gc.get_freeze_count(), gc.get_threshold()[0]
with made_to_stay():
    resting = not gc.isenabled()
    made = [[] for _ in range(1000)]
looked_through = {id(each) for each in gc.get_objects()}
later = gc.get_threshold()[0] > usual
print(resting, gc.isenabled(), gc.get_freeze_count() - before > 1000, not looked_through & set(map(id, made)), later)
"""
    assert run(program) == "True True True True True"


def test_garbage_of_later_is_found_also_where_the_beginning_failed() -> None:
    program = """
import weakref
class Each:
    pass
try:
    with made_to_stay():
        raise ValueError
except ValueError:
    pass
one = Each()
one.itself = one
gone = weakref.ref(one)
del one
gc.collect()
print(gc.isenabled(), gone() is None)
"""
    assert run(program) == "True True"
