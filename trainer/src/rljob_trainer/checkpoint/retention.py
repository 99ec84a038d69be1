"""Choose the checkpoints to keep and delete the others."""

import re
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path

from rljob_trainer.checkpoint.manifest import MANIFEST, CheckpointRef, Manifest, Retention, counting, survey
from rljob_trainer.volume import Volume, sync_folder

_STAGED = re.compile(r"\.step-\d+-a(\d+)\.part")


def reasons_to_keep(refs: Sequence[CheckpointRef], retention: Retention) -> dict[Path, str]:
    """Why each kept checkpoint is kept: "last", "every 20", "best", or several. refs: those that count.

    "best" compares validation rewards if any checkpoint has one, else training rewards; the newer one wins a tie.
    """
    ordered = sorted(refs, key=_age)
    every = retention.keep_every
    reasons = {
        "last": ordered[-retention.keep_last :],
        f"every {every}": [ref for ref in ordered if every and ref.manifest.step % every == 0],
        "best": _best(ordered, retention.keep_best),
    }
    texts = {ref.path: ", ".join(why for why, kept in reasons.items() if ref in kept) for ref in ordered}
    return {path: text for path, text in texts.items() if text}


class Pruning:
    """What retention deletes: the constructor lists it, `carry_out` deletes it. The caller checks its fence between."""

    def __init__(self, volume: Volume, retention: Retention, attempt: int, spared: Collection[Path] = ()) -> None:
        """attempt: the one that prunes; unfinished saves of older attempts are deleted too. spared: never deleted."""
        found = survey(volume)
        refs = counting(found)
        kept = reasons_to_keep(refs, retention)
        self.checkpoints = [ref.path for ref in refs if ref.path not in kept]
        self.checkpoints += [each.path for each in found if each.standing == "superseded" and each.path not in spared]
        self.deleted: list[Path] = []
        self._leftovers = [
            each.path
            for each in found
            if each.standing == "unfinished" and each.attempt < attempt and each.path not in spared
        ] + _staged(volume, attempt)

    def carry_out(self) -> None:
        """Delete, and fill `deleted`. Raises the first OSError after all deletions were tried."""
        failures = [failure for path in self.checkpoints if (failure := self._delete(path))]
        for path in [*self.deleted, *self._leftovers]:
            shutil.rmtree(path, ignore_errors=True)  # if a superseded driver still writes, the next pruning tries again
        if failures:
            raise failures[0]

    def _delete(self, path: Path) -> OSError | None:
        """Delete the manifest first, so that a partly deleted folder does not count."""
        try:
            (path / MANIFEST).unlink(missing_ok=True)
            sync_folder(path)
        except OSError as error:
            return error
        self.deleted.append(path)
        return None


def _best(refs: Sequence[CheckpointRef], count: int) -> list[CheckpointRef]:
    if count == 0:
        return []
    validated = [ref for ref in refs if ref.manifest.validation_reward is not None]
    rewarded = validated or [ref for ref in refs if ref.manifest.reward is not None]
    return sorted(rewarded, key=lambda ref: (_reward(ref.manifest), *_age(ref)))[-count:]


def _reward(manifest: Manifest) -> float:
    reward = manifest.reward if manifest.validation_reward is None else manifest.validation_reward
    assert reward is not None
    return reward


def _age(ref: CheckpointRef) -> tuple[int, int]:
    return ref.manifest.step, ref.manifest.attempt


def _staged(volume: Volume, attempt: int) -> list[Path]:
    """Staging folders that older attempts left."""
    named = ((path, _STAGED.fullmatch(path.name)) for path in volume.checkpoints.glob(".step-*"))
    return [path for path, name in named if name and int(name[1]) < attempt]
