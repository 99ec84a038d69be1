"""The builtin rewards: one file each, with the class `Reward`.

A Reward is a pydantic dataclass whose fields are the function's `arguments`, so they are validated at the start.
Calling it scores one response. To add one, write its file and add its name to rljob_api's `Builtin`.
"""

from pydantic import ConfigDict

ARGUMENTS = ConfigDict(extra="forbid")
