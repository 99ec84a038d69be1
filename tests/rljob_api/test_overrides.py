"""`--set PATH=VALUE`, and the problems of what it writes."""

import pytest

from rljob_api.validation import InvalidRLJob, load_rljob
from tests.rljob_api.job_files import JOB


@pytest.fixture
def job(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    return path


def problems_of(path, *overrides) -> list[str]:
    with pytest.raises(InvalidRLJob) as raised:
        load_rljob(path, overrides)
    return [str(problem) for problem in raised.value.problems]


def test_values_are_yaml_and_paths_begin_below_spec(job):
    changed = load_rljob(
        job,
        [
            "training.steps=2",
            "spec.actor.learningRate=1e-5",
            "metadata.name=other",
            "metadata.labels.kueue.x-k8s.io/queue-name=research",
            "rewards.functions[0].weight=0.5",
            "rewards.functions[1]={name: short, builtin: length_penalty}",
            "rewards.functions[1].arguments.target.tokens=[1, 2]",
            "data.validation[0]=/data/test.parquet",
            "sft.steps=3",
            "actor.miniBatchSize=",
        ],
    )
    assert changed.spec.training.steps == 2
    assert changed.spec.actor.learning_rate == 1e-5
    assert changed.spec.actor.mini_batch_size is None
    assert (changed.metadata.name, changed.metadata.labels) == ("other", {"kueue.x-k8s.io/queue-name": "research"})
    assert [(f.name, f.weight) for f in changed.spec.rewards.functions] == [("exact", 0.5), ("short", 1.0)]
    assert changed.spec.rewards.functions[1].arguments == {"target": {"tokens": [1, 2]}}
    assert changed.spec.data.validation == ["/data/test.parquet"]
    assert changed.spec.sft is not None


@pytest.mark.parametrize(
    ("override", "field", "reason"),
    [
        ("training.stpes=2", "spec.training.stpes", "unknown field. Did you mean steps?"),
        ("samplesPerPrompt=2", "spec.samplesPerPrompt", "Did you mean spec.rollout.samplesPerPrompt or"),
        ("data.train_batch_size=2", "spec.data.train_batch_size", "Did you mean spec.data.promptsPerStep?"),
        ("training.steps=x", "spec.training.steps", "got 'x'"),
        ("training.steps='2'", "spec.training.steps", "Remove the quotes"),
        ("training.steps=0", "spec.training.steps", "got 0"),
        ("training.steps=", "spec.training.steps", "set training.steps, training.epochs, or both"),
        ("actor.miniBatchSize=48", "spec.actor.miniBatchSize", "must divide"),
        ("rewards.functions[3].weight=1", "spec.rewards.functions[3]", "length 1"),
        ("rewards.functions.weight=1", "spec.rewards.functions", "[0]"),
        ("training[0]=1", "spec.training", "Remove the [ ]"),
        ("training.steps", "", "PATH=VALUE"),
        ("=2", "", "PATH=VALUE"),
        ("sft.batchSize=64", "spec.sft.steps", "is required"),
        ("model.path.x=1", "spec.model.path.x", "unknown field"),
    ],
)
def test_an_error_of_an_override_names_the_option_and_the_field(job, override, field, reason):
    (problem,) = problems_of(job, override)
    assert problem.startswith(f"--set {override}: {field}")
    assert reason in problem


def test_a_repaired_field_is_no_problem_and_a_broken_one_keeps_its_line(job):
    job.write_text(JOB.replace("vllm", "vlm").replace("samplesPerPrompt: 8", "samplesPerPrompt: 0"))
    assert problems_of(job, "rollout.engine=hf") == [
        f"{job}:12:23: spec.rollout.samplesPerPrompt: must be from 1 to 4096; got 0"
    ]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "No such file or directory"),
        (b"\xff\xfe", "not UTF-8 text: byte 0"),
        (f"{JOB}---\n{JOB.replace('gsm8k-grpo', 'b')}".encode(), "several RLJobs: gsm8k-grpo, b."),
    ],
)
def test_a_file_that_is_not_one_rljob_is_refused(tmp_path, content, reason):
    path = tmp_path / "job.yaml"
    if content is not None:
        path.write_bytes(content)
    (problem,) = problems_of(path)
    assert problem.startswith(f"{path}: " if content is None or reason.startswith("not") else f"{path}:1:1: ")
    assert reason in problem
