"""What every situation says and does, as text. `python -m tests.rljob_operator.golden` writes the file."""

from pathlib import Path

from rljob_api.v1alpha1 import RecoveryStatus, RLJobStatus
from rljob_operator.kube.kinds import Manifest
from rljob_operator.plan import Patch, Plan
from tests.rljob_operator.situations import situations

FILE = Path(__file__).with_name("golden_messages.txt")


def render() -> str:
    return "\n".join(f"{name}\n{_indented(plan)}" for name, plan in situations().items())


def _indented(plan: Plan) -> str:
    return "".join(f"    {line}\n" for line in _lines(plan))


def _lines(plan: Plan) -> list[str]:
    lines = []
    if plan.status is not None:
        ready = next(each for each in plan.status.conditions if each.type == "Ready")
        lines.append(f"{plan.status.phase} {ready.reason}: {ready.message}")
        repeats, usual = ("", ready.message), ("Ready", "AllPodsReady")
        others = [each for each in plan.status.conditions if each.message not in repeats]
        others = [each for each in others if not {each.type, each.reason} & {*usual}]
        lines += [f"{each.type} {each.status} {each.reason}: {each.message}" for each in others]
        lines += _counts(plan.status)
    events = [f"{'!' if each.warning else ''}{each.reason}" for each in plan.events]
    return [*lines, *([f"events: {', '.join(events)}"] if events else []), f"does: {_done(plan)}"]


def _counts(status: RLJobStatus) -> list[str]:
    """What the next look begins with, as far as there is any."""
    driver, recovery, lines = status.driver, status.recovery, list[str]()
    if driver is not None:
        asked = f", asked to stop at {driver.stop_requested:%H:%M:%S}" if driver.stop_requested else ""
        read = f"generation {driver.generation}, {driver.steps} steps"
        lines.append(f"attempt {status.attempt} {driver.state} on {driver.cluster_uid}, {read}{asked}")
    if recovery != RecoveryStatus() or status.restarts:
        when = f" not before {recovery.not_before:%H:%M:%S}" if recovery.not_before else ""
        counted = f"{recovery.charged} since step {recovery.durable_step}"
        lines.append(f"restarts {status.restarts}, {counted}; {recovery.action} on {recovery.cluster_uid}{when}")
    if status.excluded_nodes:
        shown = [f"{each.name} {each.reason}" for each in status.excluded_nodes]
        lines.append(f"excluded {len(shown)}: {', '.join([*shown[:1], *shown[-1:]] if len(shown) > 2 else shown)}")
    times = ((name, getattr(status, name)) for name in ("start_time", "completion_time"))
    return [*lines, *(f"{name} {when:%H:%M:%S}" for name, when in times if when is not None)]


def _done(plan: Plan) -> str:
    """Without what exists for every living job."""
    done = [
        *(f"patch {each.ref.kind} {each.subresource or 'itself'}: {_change(each)}" for each in plan.patch),
        *(f"create {each['kind']}" for each in plan.create),
        *(f"apply {each['kind']}" for each in plan.apply if each["kind"] in ("Deployment", "PodGroup")),
        *([] if plan.apply else ["apply nothing"]),
        *(
            f"{verb} {ref.kind} {ref.name}"
            for verb in ("delete", "short_grace", "force")
            for ref in getattr(plan, verb)
        ),
        *(f"{word} {getattr(plan, word)}" for word in ("end", "restart") if getattr(plan, word) is not None),
        *(["submit"] if plan.submit else []),
        *(["stop"] if plan.stop else []),
        *([] if plan.finalizer is None else [f"finalizer {plan.finalizer}"]),
        *(["put the Secret back"] if plan.secret else []),
        "wait" if plan.again_in is None else f"look again in {plan.again_in:g} s",
    ]
    return ", ".join(done)


def _change(patch: Patch) -> str:
    """Conditions by their types; of other parts the names."""
    change: Manifest = patch.change.get("status") or patch.change.get("spec") or patch.change
    conditions = [f"{each['type']}={each['status']} {each['reason']}" for each in change.get("conditions", ())]
    return ", ".join([*(name for name in change if name != "conditions"), *conditions])


if __name__ == "__main__":
    FILE.write_text(render())
