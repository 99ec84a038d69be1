"""Everything the driver knows that is not a tensor."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from rljob_trainer.data.stream import SupervisedStream, TaskStream
from rljob_trainer.journal import next_digest
from rljob_trainer.loop.gradients import GradientGuard
from rljob_trainer.losses.kl_controller import KlController
from rljob_trainer.progress.metrics import Stage
from rljob_trainer.rank.results import Updated
from rljob_trainer.rank.training_state import TrainingState


@dataclass(slots=True)
class LoopState:
    """Saved in each checkpoint as trainer.json.

    step: the last finished one, and the version of the newest weights.
    policy_digest: names those weights by how they were made (journal.fingerprint).
    prompts, examples: positions in the data of RL and of supervised steps; None if the job has no such steps.
    critic_gradients: as gradients, of the critic; unused without one.
    template_time: that the prompts were rendered with. reward: mean reward of the last RL step.
    """

    prompts: TaskStream | None
    examples: SupervisedStream | None
    kl: KlController
    gradients: GradientGuard
    policy_digest: str
    template_time: datetime
    step: int = 0
    reward: float | None = None
    critic_gradients: GradientGuard = field(init=False)

    def __post_init__(self) -> None:
        self.critic_gradients = GradientGuard(self.gradients.settings, model="critic")

    def exhausted(self, stage: Stage) -> bool:
        """Whether the data of that stage has ended (training.epochs)."""
        stream = self.prompts if stage == "rl" else self.examples
        return stream is not None and stream.exhausted

    def advance(self, fingerprint: str, used: Sequence[str]) -> None:
        """One more update. fingerprint: of the settings it follows. used: names of what it learned from, in order."""
        self.step += 1
        self.policy_digest = next_digest(self.policy_digest, fingerprint, used)

    def observe(self, stage: Stage, updated: Sequence[Updated]) -> None:
        """Adapt to what an update found, once it is behind `advance`. updated: of every rank.

        What the ranks hold as the state after an update is that before this.
        """
        sums = [part.sums for part in updated]
        skipped, trajectories = sums[0].skipped, sum(each.trajectories for each in sums)
        self.gradients.observe(sums[0].grad_norms, skipped)
        if (critic := updated[0].critic) is not None:
            self.critic_gradients.observe(critic.grad_norms, critic.skipped)
        if stage == "rl" and self.kl.acts_in_loss and trajectories and not skipped:
            self.kl.update(sum(each.kl for each in sums) / trajectories, trajectories)

    def mark(
        self, stage: Stage | None, before: dict[str, Any], metrics: dict[str, float] | None = None, tokens: int = 0
    ) -> TrainingState:
        """What the ranks store with the weights that this state belongs to."""
        return TrainingState(self.step, self.policy_digest, stage, before, self.state_dict(), metrics or {}, tokens)

    def state_dict(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "policyDigest": self.policy_digest,
            "templateTime": self.template_time.isoformat(),
            "reward": self.reward,
            "kl": self.kl.state_dict(),
            "gradients": self.gradients.state_dict(),
            "criticGradients": self.critic_gradients.state_dict(),
            "prompts": self.prompts.state_dict() if self.prompts else None,
            "examples": self.examples.state_dict() if self.examples else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises DataError if the data is not that of the positions."""
        self.step, self.reward = state["step"], state["reward"]
        self.policy_digest = state["policyDigest"]
        self.kl.load_state_dict(state["kl"])
        self.gradients.load_state_dict(state["gradients"])
        self.critic_gradients.load_state_dict(state["criticGradients"])
        if self.prompts is not None and state["prompts"] is not None:
            self.prompts.load_state_dict(state["prompts"])
        if self.examples is not None and state["examples"] is not None:
            self.examples.load_state_dict(state["examples"])
