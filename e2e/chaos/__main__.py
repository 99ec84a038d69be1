"""`make chaos-local`: at least as many faults as asked for, over its jobs; writes its part of recovery.md."""

import argparse
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from math import inf
from pathlib import Path

from bench.commits import last_change
from bench.recovery_page import write_part
from e2e.chaos.faults import draw
from e2e.chaos.jobs import JOBS, Job
from e2e.chaos.report import Campaign, goals, table
from e2e.chaos.report import draw as draw_picture
from e2e.chaos.steps import ETTR
from e2e.chaos.trial import MISSED_SECONDS, RECOVERY_SECONDS, Trial, disturbed, undisturbed, write_job

_CODE = ("trainer/src", "crds/src", "e2e/chaos")
"""What decides the results."""

FAULTS_EACH = 12
"""Faults in one run; runs follow one another until there are enough."""


def main() -> None:
    arguments = _arguments()
    folder = Path(tempfile.mkdtemp(prefix="rljob-chaos-"))
    dice = random.Random(arguments.seed)
    failures: list[str] = []
    campaigns = []
    jobs = [job for job in JOBS if arguments.jobs is None or job.name in arguments.jobs]
    for job in jobs:
        faults = max(1, round(arguments.faults * job.share / sum(each.share for each in jobs)))
        campaign, wrong = run_campaign(job, faults, dice, folder / job.name, _say)
        campaigns.append(campaign)
        failures += wrong
        print(f"\n{campaign.title}: {campaign.verdict}\n{table(campaign)}\n", flush=True)
    if arguments.output:
        write_page(campaigns, arguments.output, arguments.seed)
    for failure in failures:
        print(f"FAILED: {failure}", file=sys.stderr)
    if failures:
        sys.exit(f"what the runs left is in {folder}")
    shutil.rmtree(folder)


def run_campaign(
    job: Job, faults: int, dice: random.Random, folder: Path, say: Callable[[str], None]
) -> tuple[Campaign, list[str]]:
    """Undisturbed runs, then disturbed ones until `faults` have struck. Returns also what went wrong."""
    files = [write_job(folder / f"seed-{seed}.yaml", job.document(seed=seed)) for seed in job.seeds]
    calm = []
    for file in files:
        say(f"{job.name}: undisturbed run, {file.stem}")
        calm.append(undisturbed(file, folder / f"calm-{file.stem}", ranks=job.ranks))
    trials: list[Trial] = []
    wrong = [problem for each in calm for problem in _unfinished(job, each)]
    while not wrong and (left := faults - sum(len(trial.struck) for trial in trials)) > 0:
        directory = folder / f"trial-{len(trials) + 1}"
        drawn = (draw(dice, environment=job.environment is not None) for _ in range(min(left, FAULTS_EACH)))
        trials.append(disturbed(files[0], directory, drawn, dice, say, ranks=job.ranks))
        wrong += judge(job, calm, trials[-1])
    verdict = f"{job.promise} in all {len(trials)} runs." if not wrong else f"{'; '.join(wrong)}."
    return Campaign(job.title, calm, trials, verdict), wrong


def judge(job: Job, calm: list[Trial], trial: Trial) -> list[str]:
    """What is wrong with a disturbed run."""
    name = f"{job.name}/{trial.directory.name}"
    if late := [each for each in trial.struck if each.next_update == inf]:
        if not late[0].missed:
            return [f"{name} did not miss a frozen process within {MISSED_SECONDS:.0f} s: {late[0].fault}"]
        return [f"{name} did not go on within {RECOVERY_SECONDS:.0f} s after {late[0].fault}"]
    if problems := _unfinished(job, trial):
        return problems
    steps = [line["step"] for line in trial.history]
    if steps != [line["step"] for line in calm[0].history]:
        return [f"{name} has steps {steps}"]
    return [f"{name}: {problem}" for problem in job.problems(calm, trial)]


def _unfinished(job: Job, trial: Trial) -> list[str]:
    name = f"{job.name}/{trial.directory.name}"
    if trial.code:
        return [f"{name} ended with {trial.code}: {trial.output.strip().splitlines()[-1]}"]
    if trial.attempts > 1 + trial.injected:
        return [f"{name} took {trial.attempts} drivers for {trial.injected} faults"]
    return [f"{name} left {each} behind" for each in trial.left]


def write_page(campaigns: list[Campaign], folder: Path, seed: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    draw_picture(campaigns, folder / "recovery.png")
    struck = sum(len(each.struck) for each in campaigns)
    in_phase = sum(each.in_phase for campaign in campaigns for each in campaign.struck)
    about = (
        f"`make chaos-local` of commit {last_change(_CODE)} on {os.cpu_count()} CPU cores,"
        f" {datetime.now(UTC):%Y-%m-%d}, seed {seed}: {struck} faults."
        f" Each hits one process of a run in a random phase of a step ({in_phase} of them within 30 s; the others hit"
        " after 30 s). A stopped process continues after up to 12 s or never; `recovery.hangAfter` is 5s, and a stopped"
        " GCS or raylet is detected after 10 s. Times start at the signal, also if steps continue until the process is"
        " missed; if a fault costs Ray, the steps of the next attempt count. Kills while another process is frozen have"
        " separate goals, because nothing can be replaced under a frozen raylet."
        f" {ETTR} The ETTR of a job is that with a fault every few seconds. The ETTR of a kind is that with one such"
        " fault in 10 minutes of steps, by its mean time to the next new step. If faults follow one another without a"
        " new durable checkpoint, the policy chooses a higher level: the third driver in a row gets a new Ray, and with"
        " it a new rank."
    )
    picture = "![Seconds to the next optimizer step](recovery.png)"
    parts = ["# Recovery from faults on one machine", about, picture, "## Goals", goals(campaigns)]
    for campaign in campaigns:
        ratio = f"ETTR {campaign.effective_time_ratio:.2f}, undisturbed {campaign.undisturbed_ratio:.2f}."
        parts += [f"## {campaign.title}", f"{campaign.verdict} {ratio}", table(campaign)]
    write_part(folder, "recovery_local.md", "\n\n".join(parts))


def _say(text: str) -> None:
    print(text, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m e2e.chaos", description=__doc__)
    parser.add_argument("--faults", type=int, default=100, help="how many, over all jobs")
    parser.add_argument("--seed", type=int, default=1, help="of the faults")
    parser.add_argument("--jobs", nargs="+", choices=[job.name for job in JOBS], help="only these")
    parser.add_argument("--output", type=Path, help="folder for recovery.md, its parts and pictures")
    return parser.parse_args()


if __name__ == "__main__":
    main()
