"""The nouns of one training step. Light: numpy only.

A worked example, with samplesPerPrompt: 2:

    Task("0/17/0", messages, token_ids=[5 9 2])         one row of data, rendered and tokenised
    Trajectory([5 9 2 7 7 1], in_loss=[. . . x x x])    what one forward pass trains on
    Episode("0/17/0", sample=0, (Trajectory,), reward=1.)
    Episode("0/17/0", sample=1, (Trajectory,), reward=0.)
    Group(task, (Episode 0, Episode 1))                 all episodes of one task: the unit of advantage
    GroupSummary("0/17/0", rewards=[1. 0.], ...)        what the driver knows of it

"actor" is the policy; a Ray actor is a "worker"; "job" is the RLJob; "attempt" is one driver run.
"""

from rljob_trainer.types.episode import Episode, EpisodeStatus, Group, GroupSummary, TurnSummary, stacked
from rljob_trainer.types.sampling import FinishReason, Sampling
from rljob_trainer.types.task import Bools, Floats, Ids, Message, Task, next_try, text_of
from rljob_trainer.types.trajectory import NOT_SAMPLED, Taught, Trajectory, Turn, answered, supervised

__all__ = [
    "NOT_SAMPLED",
    "Bools",
    "Episode",
    "EpisodeStatus",
    "FinishReason",
    "Floats",
    "Group",
    "GroupSummary",
    "Ids",
    "Message",
    "Sampling",
    "Task",
    "Taught",
    "Trajectory",
    "Turn",
    "TurnSummary",
    "answered",
    "next_try",
    "stacked",
    "supervised",
    "text_of",
]
