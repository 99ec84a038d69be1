"""`rljob-operator`, whose own code raises for jobs that are named so: what such a spec looks like, nobody knows yet."""

from rljob_operator import decide
from rljob_operator.cli import main
from rljob_operator.observe.facts import Facts
from rljob_operator.plan import Step
from rljob_operator.settings import Settings

POISONED = "poisoned"


def poison(facts: Facts, _settings: Settings) -> Step | None:
    if facts.job.name.startswith(POISONED):
        raise ZeroDivisionError(facts.job.name)
    return None


if __name__ == "__main__":
    decide.GATES = (poison, *decide.GATES)  # type: ignore[misc]
    main()
