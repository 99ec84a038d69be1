"""Reward models: servers that are asked for a score of each response.

RewardModels (group.py)   all models of a job; one thread with an event loop
  -> ModelClient (client.py)   one model's server: as many requests at once as it can use, tries, deadlines
  -> formats.py                what is sent for a response, and how the score is read from the answer
"""
