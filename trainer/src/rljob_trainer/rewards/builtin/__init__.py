"""The rewards that the trainer ships: one file each, with the class `Reward`.

A Reward is a pydantic dataclass whose fields are the function's `arguments`, so they are checked at the start;
calling it scores one response. A new one is its file and its name in rljob_api's `Builtin`.
"""

from pydantic import ConfigDict

ARGUMENTS = ConfigDict(extra="forbid")
