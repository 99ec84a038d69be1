"""Every test process, and every process it starts, computes with one thread and asks nothing of the network."""

import os
import signal

# Before torch or Ray are imported: they read these once. Ranks share few cores, and one thread sums in one order.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # A shell runs us in the background, and all that we start would inherit it. Tests end some of it by Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["e2e.cluster.fixtures"]
