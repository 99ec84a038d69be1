"""The CEL engine."""

import subprocess
import sys

FIRST_IN_THREADS = """
from threading import Barrier, Thread
from rljob_api.validation.cel import compiled

together, values = Barrier(8), []

def compute(number):
    together.wait()
    values.append(compiled(f"self + {number}").execute({"self": 1}))

threads = [Thread(target=compute, args=(number,)) for number in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(sorted(values))
"""


def test_several_threads_may_be_the_first_to_need_it():
    """Its native module panics when it is made twice."""
    ended = subprocess.run([sys.executable, "-c", FIRST_IN_THREADS], capture_output=True, text=True, check=False)
    assert (ended.stdout, ended.stderr) == ("[1, 2, 3, 4, 5, 6, 7, 8]\n", "")
