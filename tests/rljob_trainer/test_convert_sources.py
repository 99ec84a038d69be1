"""What `rljob convert` reads: launch scripts without running them, YAML with references, overrides."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from rljob_trainer.convert.convert import conversion_of
from rljob_trainer.convert.shell import script_settings
from rljob_trainer.convert.source import read_settings
from rljob_trainer.errors import JobError
from tests.rljob_trainer.convert_support import spec

SCRIPT = """
set -x  # it's not run
N=${N:-2}
home=${DATA_HOME:-"${HOME}/data"}
longest=$(( (1024 + N) * 2 ))
MORE="data.shuffle=False \\
    data.seed=3"
python3 -m verl.trainer.main_ppo --config-name=x \\
    # data.seed=4 \\
    data.train_files="['$home/a.parquet', '$home/b.parquet']" \\
    +data.max_prompt_length=$longest $MORE \\
    trainer.experiment_name=$(date +%Y) $@ 2>&1 | tee log.txt
"""


def test_a_script_is_read_without_being_run() -> None:
    assert script_settings(SCRIPT, "run.sh") == [
        "data.train_files=['~/data/a.parquet', '~/data/b.parquet']",
        "+data.max_prompt_length=2052",
        "data.shuffle=False",
        "data.seed=3",
        "trainer.experiment_name=$(date+%Y)",
    ]


ARRAYS = """
LR=1e-6; N=5
ARGS=(data.train_files=a.parquet "data.seed=$N")
ARGS+=(data.shuffle=False)
MORE="data.max_prompt_length=300"
MORE+=" data.max_response_length=700"
main "${ARGS[@]}" $MORE actor_rollout_ref.actor.optim.lr=$LR data.train_batch_size=${UNSET}; exit
"""


def test_arrays_and_ends_of_commands_are_read_and_a_variable_that_is_not_set_is_listed(tmp_path: Path) -> None:
    assert script_settings(ARRAYS, "run.sh") == [
        "data.train_files=a.parquet",
        "data.seed=5",
        "data.shuffle=False",
        "data.max_prompt_length=300",
        "data.max_response_length=700",
        "actor_rollout_ref.actor.optim.lr=1e-6",
        "data.train_batch_size=${UNSET}",
    ]
    file = tmp_path / "run.sh"
    file.write_text(ARRAYS)
    assert "${UNSET} has a variable" in conversion_of(str(file), []).left["data.train_batch_size"]


def test_options_of_trl_take_a_value_behind_an_equals_sign_and_several_values(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    file.write_text(
        "accelerate launch --num_processes 4 train.py --model_name_or_path=org/model --temperature=0.7 --use_vllm"
        " --reward-funcs r.exact r.format --reward_weights 1 0.5 --num_iterations 2 --warmup_steps 9 --beta -1 2>&1"
    )
    found = spec(conversion_of(str(file), []))
    assert (found["model"]["path"], found["rollout"]["temperature"]) == ("org/model", 0.7)
    assert [each["weight"] for each in found["rewards"]["functions"]] == [1, 0.5]
    assert (found["actor"]["lrWarmupSteps"], found["cluster"]["gpusPerNode"]) == (5, 4)
    assert "reward_weights" in conversion_of(str(file), ["reward_weights=1"]).left


ACCELERATE = """
accelerate launch \\
    --num_processes 4 \\
    train_grpo.py \\
    --model_name_or_path org/model#v1 --dataset_name "org/\\
data" \\
    # --beta 0.1 \\
    --reward_funcs r.exact r.format \\
    --learning_rate 1e-6 --beta 0.04 --eval_strategy no \\
    --output_dir "it's" "$@"
echo done  # it's over
"""


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_lines_of_a_script_that_end_with_a_backslash_are_one(end: str, tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    file.write_text(ACCELERATE, newline=end)
    assert read_settings(str(file), []) == {
        "num_processes": 4,
        "model_name_or_path": "org/model#v1",
        "dataset_name": "org/data",
        "reward_funcs": ["r.exact", "r.format"],
        "learning_rate": 1e-6,
        "beta": 0.04,
        "eval_strategy": False,  # as YAML reads it
        "output_dir": "it's",
    }
    assert not conversion_of(str(file), []).left


def test_a_file_of_verl_keeps_its_references_and_takes_overrides(tmp_path: Path) -> None:
    file = tmp_path / "ppo_trainer.yaml"
    file.write_text(
        "data: {train_files: a.parquet, max_response_length: 64, seed: null}\n"
        "algorithm: {adv_estimator: rloo}\n"
        "actor_rollout_ref:\n"
        "  model: {path: org/model}\n"
        "  rollout: {n: '${oc.select:trainer.samples,6}', temperature: '${.n}'}\n"
    )
    found = spec(conversion_of(str(file), ["data.max_response_length=32", "~data.seed"]))
    assert (found["rollout"]["samplesPerPrompt"], found["rollout"]["temperature"]) == (6, 6)
    assert found["data"]["maxResponseTokens"] == 32


@pytest.mark.skipif(find_spec("hydra") is not None, reason="Hydra reads the groups")
def test_groups_that_only_hydra_reads_are_listed(tmp_path: Path) -> None:
    file = tmp_path / "ppo_trainer.yaml"
    file.write_text("defaults: [{data: legacy}, _self_]\ndata: {train_files: a.parquet}\n")
    assert "hydra-core" in conversion_of(str(file), []).left["defaults"]


@pytest.mark.parametrize("source", ["no-such-file.yaml", "x=1"])
def test_a_source_without_settings_is_an_error(source: str) -> None:
    with pytest.raises(JobError, match=r"cannot be read|has no settings"):
        conversion_of(source, [])
