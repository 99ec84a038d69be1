"""The built-in environment: the policy answers the prompt, once."""

from rljob_trainer.environments.environment import Policy
from rljob_trainer.types import Episode, Task, answered


async def single_turn(task: Task, policy: Policy) -> Episode:
    """One trajectory of one turn."""
    turn = await policy.generate(task.token_ids)
    trajectory = answered(
        task.token_ids, turn.token_ids, turn.log_probs, turn.versions, policy.temperature, turn.finish_reason
    )
    return Episode(task.id, policy.sample, (trajectory,), "truncated" if trajectory.truncated else "finished")
