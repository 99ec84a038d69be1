"""Rewards: the user's functions, in processes of their own, with a deadline for each call.

    GroupScorer (scorer.py)      scores a group, then journals it; hosted by a Ray worker with threads
      -> RewardWorker (worker.py)  decodes its samples
      -> RewardPool (pool.py)      weighted sums; one thread for each process
           -> child.py             the process: loads the functions (load.py), answers one message for each call

Reward processes import this package, so importing it imports nothing else.
"""
