"""Runs Python code of a model: without network, other files, other processes, and within limits. docs/sandbox.md."""

from rljob_trainer.sandbox.run import Limits, Outcome, Status, run

__all__ = ["Limits", "Outcome", "Status", "run"]
