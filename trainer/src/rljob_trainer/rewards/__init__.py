"""Rewards: the user's functions, in their own processes with a deadline for each call, and reward models.

    Scorer (scorer.py)           scores the episodes of a group; part of the rollout host
      -> RewardPool (pool.py)      weighted sums; one thread for each process
           -> child.py             the process: loads the functions (load.py) and answers calls
      -> RewardModels (models/)    weighted sums; sends requests to the models' servers

Reward processes import this package, so it imports nothing.
"""
