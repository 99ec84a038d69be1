"""The rollout journal: every finished, scored group stays on the volume until a checkpoint makes it needless.

    RewardHost ── JournalWriter.append(key, group, score) ──> journal/a<n>/step-<s>.journal
    driver     ── Journal.find(key, prompt) ──> the group, if one was finished for this step by this very policy
    driver     ── truncate(volume, step of the newest durable checkpoint, attempt)

A policy is named by how it was made (fingerprint.py), so a group can only be found for a policy that would make it.
Light: neither torch nor Ray.
"""

from rljob_trainer.journal.files import truncate
from rljob_trainer.journal.fingerprint import first_digest, next_digest, rollout_fingerprint, update_fingerprint
from rljob_trainer.journal.reader import Journal
from rljob_trainer.journal.record import GroupKey
from rljob_trainer.journal.writer import JournalWriter

__all__ = [
    "GroupKey",
    "Journal",
    "JournalWriter",
    "first_digest",
    "next_digest",
    "rollout_fingerprint",
    "truncate",
    "update_fingerprint",
]
