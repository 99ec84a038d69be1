"""The command line as a user meets it."""

import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer
from click.testing import CliRunner

from rljob_trainer.checkpoint.manifest import commit
from rljob_trainer.cli.app import COMMANDS, _load
from rljob_trainer.cli.failures import report
from rljob_trainer.cli.validate import validate
from rljob_trainer.errors import DataError
from rljob_trainer.local.lock import only_run_in
from rljob_trainer.progress.overview import lines, look_at
from rljob_trainer.progress.reporter import ProgressReporter
from rljob_trainer.volume import Volume, write_json
from tests.rljob_trainer.cli_support import rljob

JOB = """
apiVersion: rljob.dev/v1alpha1
kind: RLJob
metadata: {name: first}
spec:
  model: {path: some/model}
  data: {train: [train.parquet]}
  rewards: {functions: [{name: exact, builtin: exact_match}]}
  training: {steps: 10}
  cluster: {nodes: 1, gpusPerNode: 0}
"""


def test_help_lists_the_commands_and_loads_nothing_heavy() -> None:
    program = (
        "import sys; sys.argv = ['rljob', '--help']; import rljob_trainer.cli as cli\n"
        "try: cli.main()\n"
        "finally: print(*sys.modules, sep='\\n', file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60)
    shown = [name for name in COMMANDS if f"\n  {name} " in done.stdout]
    assert shown == [name for name in COMMANDS if name != "driver"]
    assert not set(done.stderr.split()) & {"torch", "ray", "rich.console", "pydantic", "rljob_api", "matplotlib"}


@pytest.mark.parametrize("command", ["driver", "eval"])
def test_commands_that_make_rows_have_the_hash_seed_of_reward_processes(command: str) -> None:
    program = "import sys; from rljob_trainer.cli import main; print('random', sys.flags.hash_randomization); main()"
    environment = {**os.environ, "PYTHONHASHSEED": "random"}
    done = subprocess.run(
        [sys.executable, "-c", program, command, "--help"], env=environment, check=True, capture_output=True, text=True
    )
    assert "random 0" in done.stdout


def test_an_unknown_command_is_a_usage_error_with_a_suggestion() -> None:
    done = rljob("statsu")
    assert done.returncode == 2
    assert "Did you mean 'status'?" in done.stderr


def test_validate_prints_every_error_and_ends_with_the_codes_of_a_wrong_job(tmp_path: Path) -> None:
    (tmp_path / "good.yaml").write_text(JOB)
    (tmp_path / "bad.yaml").write_text(JOB.replace("steps: 10", "steps: 0").replace("nodes: 1", "nodez: 1"))

    done = rljob("validate", "good.yaml", "bad.yaml", cwd=tmp_path)
    assert done.returncode == 64
    printed = done.stdout.splitlines()
    assert printed[0] == "good.yaml: valid: first"
    assert [line.split(": ")[:2] for line in printed[1:]] == [
        ["bad.yaml:9:21", "spec.training.steps"],
        ["bad.yaml:10:13", "spec.cluster.nodez"],
    ]
    assert done.stderr == "2 errors\n"


WRONG_CODE = """
apiVersion: rljob.dev/v1alpha1
kind: RLJob
metadata: {name: first}
spec:
  model: {path: some/model}
  data: {train: [train.parquet]}
  rewards:
    functions:
    - name: inline
      source: |
        def compute_score(*row, **more):
            return 1 +
    - name: other
      source: "def score(*row, **more): return 1"
    - name: file
      path: here.py
    - {name: away, path: /only/in/the/cluster.py}
  training: {steps: 10}
"""


def test_validate_judges_reward_code_that_is_there_and_runs_none(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(WRONG_CODE)
    (tmp_path / "here.py").write_text("open('ran', 'w')\ndef compute_score(:\n")

    done = rljob("validate", "job.yaml", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (64, "3 errors\n")
    source, function, path = done.stdout.splitlines()
    assert source == (
        "job.yaml:11:15: spec.rewards.functions[0].source: the code: line 2: invalid syntax: 'return 1 +'; correct it"
    )
    assert function == (
        "job.yaml:14:7: spec.rewards.functions[1].function: no function 'compute_score'; it defines score: define it,"
        " or set function to another"
    )
    assert path.startswith("job.yaml:17:13: spec.rewards.functions[2].path: here.py: line 2: invalid syntax")

    (tmp_path / "job.yaml").write_text(WRONG_CODE.replace("1 +", "1").replace("def score", "def compute_score"))
    (tmp_path / "here.py").write_text("open('ran', 'w')\nfrom elsewhere import compute_score\n")
    assert rljob("validate", "job.yaml", cwd=tmp_path).stdout == "job.yaml: valid: first\n"
    assert not (tmp_path / "ran").exists()


SEVERAL = """
apiVersion: rljob.dev/v1alpha1
kind: RLJob
metadata: {{name: first}}
spec:
  model: {{path: some/model}}
  data:
    train: [{train}]
    promptsPerStep: {prompts}
  rewards:
    functions: [{functions}]
  training: {{steps: {steps}}}
"""

WRONG_URL = "'synthetic://countdown?cout=3&maxNumber=0&rows=none&split=test'"
SAID_OF_IT = [
    "spec.data.train[0]: unknown argument 'cout', did you mean 'count'?",
    "spec.data.train[0]: maxNumber=0: Input should be greater than or equal to",
    "spec.data.train[0]: rows=none: Input should be a valid integer",
    "spec.data.train[0]: split=test: Input should be 'train' or 'validation'",
]
WRONG_BUILTIN = "{name: a, builtin: similarity, arguments: {method: none, other: 1}}"
SAID_OF_THAT = [
    "spec.rewards.functions[0].arguments: method: Input should be 'ratio' or 'positions'",
    "spec.rewards.functions[0].arguments: unknown argument 'other'; similarity has method",
]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (  # a value of another type elsewhere
            {"train": WRONG_URL, "functions": WRONG_BUILTIN, "steps": "many"},
            [*SAID_OF_IT, *SAID_OF_THAT, "spec.training.steps: must be a whole number"],
        ),
        (  # another rule of the API
            {"train": WRONG_URL, "functions": "{name: mean, builtin: exact_match}"},
            [*SAID_OF_IT, "spec.rewards.functions[0].name: "],
        ),
        (  # its neighbours in the list, and other fields of itself
            {"train": f"3, {WRONG_URL}"},
            ["spec.data.train[0]: must be", *(line.replace("train[0]", "train[1]") for line in SAID_OF_IT)],
        ),
        (
            {"functions": WRONG_BUILTIN.replace("name: a", "name: a, weight: much")},
            ["spec.rewards.functions[0].weight: must be a number", *SAID_OF_THAT],
        ),
        (  # fields that are broken themselves say nothing more
            {"functions": "{name: a, builtin: similarty, arguments: {method: none}}"},
            ["spec.rewards.functions[0].builtin: must be one of"],
        ),
        ({"functions": "exact_match"}, ["spec.rewards.functions[0]: must be a mapping"]),
        ({"train": "'synthetic://[x'"}, ["spec.data.train[0]: synthetic://[x: "]),
        ({"train": "'org/name?spilt=test'"}, ["spec.data.train[0]: org/name?spilt=test: unknown argument 'spilt'"]),
    ],
)
def test_validate_says_every_error_at_once_whatever_else_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fields: dict[str, str], said: list[str]
) -> None:
    good = {"train": "a.parquet", "prompts": "8", "functions": "{name: a, builtin: exact_match}", "steps": "3"}
    (tmp_path / "job.yaml").write_text(SEVERAL.format(**good | fields))
    with pytest.raises(typer.Exit):
        validate([tmp_path / "job.yaml"])
    printed = [line.split(": ", 1)[1] for line in capsys.readouterr().out.splitlines()]
    url = fields.get("train", "").rpartition("'synthetic")[2].rstrip("'")
    shown = sorted(line.replace(f": synthetic{url}: ", ": ") if url.startswith("://c") else line for line in printed)
    assert len(shown) == len(said), shown
    assert all(line.startswith(start) for line, start in zip(shown, sorted(said), strict=True)), shown


def test_validate_judges_the_code_of_an_environment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = {"train": "a.parquet", "prompts": "8", "functions": "{name: a, builtin: exact_match}", "steps": "3"}
    game = "  environment: {path: game.py, tools: [add, sub], arguments: {a: 1}}\n  rewards:"
    (tmp_path / "job.yaml").write_text(SEVERAL.format(**good).replace("  rewards:", game))
    validate([tmp_path / "job.yaml"])
    assert "valid: first" in capsys.readouterr().out, "the file may exist in the cluster"
    (tmp_path / "game.py").write_text("open('ran', 'w')\ndef add(): 'Add.'\n")
    with pytest.raises(typer.Exit):
        validate([tmp_path / "job.yaml"])
    tool, arguments = capsys.readouterr().out.splitlines()
    assert ":10:45: spec.environment.tools[1]: the code has no function 'sub': define it" in tool
    assert "spec.environment.arguments: the policy gives the arguments of tools" in arguments
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("image", ["", "  cluster: {image: mine}\n"])
def test_validate_reads_signatures_and_looks_for_programs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], image: str
) -> None:
    """An image of the job's own may have other programs than this machine."""
    good = {"train": "a.parquet", "prompts": "8", "functions": "{name: a, builtin: exact_match}", "steps": "3"}
    environment = "  environment: {path: game.py, tools: [add], mcpServers: [{name: a, command: [none-such]}]}\n"
    (tmp_path / "job.yaml").write_text(SEVERAL.format(**good).replace("  rewards:", f"{environment}{image}  rewards:"))
    (tmp_path / "game.py").write_text("def add(a: int, b):\n    'Add.'\n")
    with pytest.raises(typer.Exit):
        validate([tmp_path / "job.yaml"])
    hint, *program = capsys.readouterr().out.splitlines()
    assert "spec.environment.tools[0]: parameter b of tool add has no type hint: write one" in hint
    assert [line.partition(": ")[2] for line in program] == [
        "spec.environment.mcpServers[0].command[0]: none-such is no program here: install it, or correct the name"
    ][: not image]


def test_validate_renders_the_template_of_a_job_with_tools(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = {"train": "a.parquet", "prompts": "8", "functions": "{name: a, builtin: exact_match}", "steps": "3"}
    tools = "  environment: {builtinTools: [{name: calculator}]}\n  rewards:"
    job = SEVERAL.format(**good).replace("  rewards:", tools)
    (tmp_path / "job.yaml").write_text(job)
    validate([tmp_path / "job.yaml"])
    assert "valid: first" in capsys.readouterr().out, "the model's own template is not here"
    (tmp_path / "job.yaml").write_text(job.replace("some/model}", "some/model, chatTemplate: '{{ messages }}'}"))
    with pytest.raises(typer.Exit):
        validate([tmp_path / "job.yaml"])
    assert "6:43: spec.model.chatTemplate: tools need another chat template" in capsys.readouterr().out


def test_show_fills_in_what_the_preset_decides(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    done = rljob("show", "job.yaml", "--set", "algorithm.preset=dapo", "--set", "training.steps=7", cwd=tmp_path)
    assert done.returncode == 0
    assert "loss: decoupled_clip" in done.stdout
    assert "steps: 7" in done.stdout


def test_a_wrong_override_is_named(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    done = rljob("show", "job.yaml", "--set", "training.stepz=7", cwd=tmp_path)
    assert done.returncode == 64
    assert done.stderr == "error: --set training.stepz=7: spec.training.stepz: unknown field. Did you mean steps?\n"


def test_data_writes_a_task_and_names_the_files(tmp_path: Path) -> None:
    done = rljob("data", "reverse-text", "out", "--rows", "8", "--validation-rows", "2", cwd=tmp_path)
    assert done.returncode == 0
    assert all((tmp_path / path).stat().st_size > 0 for path in done.stdout.split())

    failed = rljob("data", "reverse-txt", "out", cwd=tmp_path)
    assert failed.returncode == 65
    assert failed.stderr.startswith("error: unknown task 'reverse-txt'")


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("rows=5", "rows has its own option, --rows"),
        ("maxLength", "'maxLength' is not NAME=VALUE"),
    ],
)
def test_what_is_no_argument_of_a_task_is_a_wrong_call_of_data(argument: str, message: str) -> None:
    done = CliRunner().invoke(_load("data"), ["reverse-text", "out", "--set", argument])
    assert done.exit_code == 2
    assert f"--set: {message}" in done.output


def test_an_error_names_field_and_remedy_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    code = report(DataError("no such file: check the path", field="spec.data.train[0]"))
    assert code == 65
    assert capsys.readouterr().err == "error: spec.data.train[0]: no such file: check the path\n"


def test_a_bug_says_so_and_keeps_its_traceback_in_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        raise KeyError("lost")
    except KeyError as error:
        code = report(error)

    first, second = capsys.readouterr().err.splitlines()
    path = Path(second.split()[-1])
    assert (code, first) == (70, "this is a bug: KeyError: 'lost'")
    assert "Traceback" in path.read_text()
    path.unlink()


def test_a_full_disk_is_no_bug(capsys: pytest.CaptureFixture[str]) -> None:
    code = report(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "agent.log"))
    assert (code, capsys.readouterr().err) == (
        79,
        "error: the volume is full ([Errno 28] No space left on device: 'agent.log'); free space or grow it\n",
    )


def begin(folder: Path, step: int = 3) -> Volume:
    volume = Volume(folder)
    write_json(volume.job, {"jobUid": "u1", "name": "first", "layoutVersion": 1})
    write_json(volume.claim(1), {"attempt": 1, "resumedStep": None})
    with ProgressReporter(volume) as progress:
        progress.begin(step=step, total_steps=12)
        progress.phase("rollout")
    return volume


def test_the_status_of_a_live_run(tmp_path: Path) -> None:
    volume = begin(tmp_path)
    staged = volume.checkpoints / "staged"
    staged.mkdir(parents=True)
    commit(staged, volume.checkpoint(2, 1), step=2, attempt=1, reward=None)

    assert lines(look_at(tmp_path)) == [
        f"job         first ({tmp_path})",
        "state       running, attempt 1",
        "step        3/12 (25 %), rl rollout",
        f"checkpoint  step 2 ({volume.checkpoint(2, 1)})",
    ]


def test_the_status_of_a_run_whose_driver_is_gone(tmp_path: Path) -> None:
    volume = begin(tmp_path)
    long_ago = time.time() - 125
    os.utime(volume.progress, (long_ago, long_ago))

    assert look_at(tmp_path).state == "lost"
    assert lines(look_at(tmp_path))[1] == "state       attempt 1 died without an exit record; last heartbeat 2:05 ago"


def test_the_status_of_a_run_that_was_killed_with_its_supervisor(tmp_path: Path) -> None:
    volume = begin(tmp_path)
    holder = "import sys; from rljob_trainer.local.lock import *; only_run_in(Volume(Path(sys.argv[1]))).__enter__(); "
    killed = "import os; from pathlib import Path; " + holder + "os.kill(os.getpid(), 9)"
    with only_run_in(volume):
        assert look_at(tmp_path).state == "running", "its supervisor lives"
    subprocess.run([sys.executable, "-c", killed, tmp_path], check=False)
    assert look_at(tmp_path).state == "lost"
    volume.run_lock.unlink()
    assert look_at(tmp_path).state == "running", "its drivers are not started by `rljob run`"


@pytest.mark.parametrize(
    ("attempt", "run", "state"),
    [
        (0, None, "done"),
        (76, None, "stopped"),
        (64, None, "failed"),
        (75, 75, "failed"),
        (75, 76, "stopped"),
        (75, 143, "stopped"),
    ],
)
def test_the_status_of_an_ended_run(tmp_path: Path, attempt: int, run: int | None, state: str) -> None:
    """How the run ended, where its supervisor says so; else how its last attempt did."""
    volume = begin(tmp_path)
    write_json(volume.exit_record(1), {"code": attempt, "reason": "A", "message": "what happened", "field": "spec"})
    if run is not None:
        write_json(volume.run_exit, {"code": run, "reason": "R", "message": "no more", "field": "spec"})
    said = f"{attempt} A: what happened" if run is None else f"{run} R: no more"
    assert look_at(tmp_path).state == state
    assert lines(look_at(tmp_path))[-2:] == [f"exit        {said}", "field       spec"]


def test_the_status_after_an_attempt_of_a_run_that_lives(tmp_path: Path) -> None:
    volume = begin(tmp_path)
    write_json(volume.exit_record(1), {"code": 75, "reason": "RankLost", "message": "what happened"})
    with only_run_in(volume):
        found = look_at(tmp_path)
    assert found.state == "running"
    assert lines(found)[1] == "state       running, attempt 1 has ended (RankLost)"


def test_the_status_with_damaged_files(tmp_path: Path) -> None:
    volume = begin(tmp_path)
    for path in (volume.job, volume.progress, volume.exit_record(1)):
        path.write_text('{"code": 0, "rea')

    found = look_at(tmp_path)
    assert (found.name, found.state, found.progress, found.exit) == (tmp_path.name, "running", None, None)


def test_the_status_as_json(tmp_path: Path) -> None:
    begin(tmp_path)
    done = rljob("status", str(tmp_path), "--json")
    found = json.loads(done.stdout)
    assert (found["state"], found["attempt"], found["progress"]["totalSteps"], found["exit"]) == (
        "running",
        1,
        12,
        None,
    )

    missing = rljob("status", str(tmp_path / "no"))
    assert (missing.returncode, missing.stderr.split()[:1]) == (65, ["error:"])
