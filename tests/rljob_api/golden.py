"""The golden file of the API's messages: what `rljob validate` prints for each broken file of job_files.py.

Write it after a change of a message with `python -m tests.rljob_api.golden`, and read the difference.
"""

from pathlib import Path

from rljob_api.validation import validate
from tests.rljob_api.job_files import BROKEN, BROKEN_YAML

FILE = Path(__file__).with_name("problems.golden")


def render() -> str:
    """Each message once, in the order of the files, without its position."""
    lines: dict[str, None] = {}
    for row in (*BROKEN, *BROKEN_YAML):
        for problem in validate(row.text, "job.yaml").problems:
            field = f"{problem.field}: " if problem.field else ""
            lines[f"{field}{problem.message}" + (f". {problem.remedy}" if problem.remedy else "")] = None
    return "".join(f"{line}\n" for line in lines)


if __name__ == "__main__":
    FILE.write_text(render())
