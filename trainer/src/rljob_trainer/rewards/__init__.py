"""Rewards: the user's functions, in processes of their own with a deadline for each call, and reward models.

    Scorer (scorer.py)           scores the episodes of a group; part of the rollout host
      -> RewardWorker (worker.py)  decodes its samples; sums up what functions and models say
      -> RewardPool (pool.py)      weighted sums; one thread for each process
           -> child.py             the process: loads the functions (load.py), answers one message for each call
      -> RewardModels (models/)    weighted sums; asks the models' servers

Reward processes import this package, so importing it imports nothing else.
"""
