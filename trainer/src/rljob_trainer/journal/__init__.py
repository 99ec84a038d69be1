"""The rollout journal: what was made and what was used stays on the volume until a checkpoint makes it needless.

    RolloutHost ── JournalWriter.append(Made ...) ──> journal/a<n>/version-<v>.journal     before it reports an episode
    RolloutHost ── JournalWriter.append(Used) ─────>  the same file; its Made are durable first, the update begins after
    RolloutHost ── Journal.find(task, sample, ...) ──> the episode, if this very policy made it before
    driver      ── truncate(volume, version of the newest durable checkpoint, attempt)

A policy is named by how it was made (fingerprint.py), so an episode is only found for a policy that would make it.
Light: neither torch nor Ray.
"""

from rljob_trainer.journal.files import truncate
from rljob_trainer.journal.fingerprint import (
    first_digest,
    next_digest,
    rollout_fingerprint,
    step_fingerprint,
    update_fingerprint,
)
from rljob_trainer.journal.reader import Journal
from rljob_trainer.journal.record import Made, Used
from rljob_trainer.journal.writer import JournalWriter

__all__ = [
    "Journal",
    "JournalWriter",
    "Made",
    "Used",
    "first_digest",
    "next_digest",
    "rollout_fingerprint",
    "step_fingerprint",
    "truncate",
    "update_fingerprint",
]
