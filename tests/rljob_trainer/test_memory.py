"""keep_freed_memory, by the pages that a process has to fault in."""

import platform
import subprocess
import sys

import pytest

BLOCKS = """
import resource, sys
import torch
from rljob_trainer.compute.freed_memory import keep_freed_memory

def use_blocks():
    for _ in range(10):
        torch.ones(10 << 20)  # 40 MiB: above 32 glibc maps and unmaps a block whatever came before

if sys.argv[1] == "kept":
    keep_freed_memory()
use_blocks()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
use_blocks()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_memory_that_was_freed_serves_the_next_tensor_without_page_faults():
    assert faults("kept") < faults("as ever") / 5


def faults(how: str) -> int:
    run = subprocess.run([sys.executable, "-c", BLOCKS, how], capture_output=True, text=True, check=True)
    return int(run.stdout)
