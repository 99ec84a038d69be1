"""The Kubernetes operator of RLJob, which reconciles nothing yet.

So far it holds its import contract: it loads neither torch nor Ray nor the trainer, and shares only rljob_api with it.
"""
