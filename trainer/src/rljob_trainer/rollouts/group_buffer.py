"""Finished groups that no update has used yet."""

from rljob_trainer.rollouts.calls import GroupRef


class GroupBuffer:
    """Groups by task, none older than `max_staleness` updates.

    The age of a group at the update of the policy `version` is that version minus the smallest version among its
    tokens in the loss. With max_staleness 0 a group is used by the update of the very policy that made it.
    """

    def __init__(self, max_staleness: int = 0) -> None:
        self._max_staleness = max_staleness
        self._groups: dict[str, GroupRef] = {}

    def add(self, group: GroupRef) -> None:
        self._groups[group.summary.task_id] = group

    def get(self, task_id: str) -> GroupRef | None:
        return self._groups.get(task_id)

    def drop_stale(self, version: int) -> list[GroupRef]:
        """Forget the groups that are too old for the update of the policy `version`. Returns them."""
        stale = [group for group in self._groups.values() if group.summary.age(version) > self._max_staleness]
        for group in stale:
            del self._groups[group.summary.task_id]
        return stale

    def clear(self) -> None:
        self._groups.clear()

    def __len__(self) -> int:
        return len(self._groups)
