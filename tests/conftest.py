"""Every test process, and every process it starts, computes with one thread and asks nothing of the network."""

import os

# Before torch or Ray are imported: they read these once. Ranks share few cores, and one thread sums in one order.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
