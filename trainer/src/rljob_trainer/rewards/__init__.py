"""Rewards: the user's functions, in processes of their own, with a deadline for each call.

    RewardWorker (worker.py)     decodes a group's samples; hosted by a Ray worker with threads
      -> RewardPool (pool.py)    weighted sums; one thread for each process
           -> child.py           the process: loads the functions (load.py), answers one message for each call

Reward processes import this package, so importing it imports nothing else.
"""
