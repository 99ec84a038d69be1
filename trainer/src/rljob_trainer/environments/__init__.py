"""What plays an episode: `Environment`, an async function from a task and a policy to an episode.

    single_turn.py           the built-in one: the policy answers the prompt
    pool.py                  the user's: plays in child processes, and retries
      -> process.py            one process; child.py is its other side, which runs api.py, loops.py, tools.py
      -> session.py            one try of one episode: turns, limits, trajectories
           -> conversation.py    messages to tokens     -> recorder.py   turns to trajectories

Environment processes import this package, perhaps under an interpreter of the user's, so it imports nothing but api.py.
What users import: `from rljob_trainer.environments import Episode`.
"""

from rljob_trainer.environments.api import Answer, Episode, EpisodeOver, Policy, Task

__all__ = ["Answer", "Episode", "EpisodeOver", "Policy", "Task"]
