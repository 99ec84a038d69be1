"""Reward models: servers that score each response.

RewardModels (group.py)   all models of a job; one thread with an event loop
  -> ModelClient (client.py)   one model's server: concurrent requests, retries, deadlines
  -> formats.py                the request for a response, and the score in the answer
"""
