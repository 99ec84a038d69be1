"""Presets against their papers, and what `resolve` and `rljob show` make of a spec."""

import pytest
import yaml

from rljob_api import RLJobSpec, resolve
from rljob_api.show import render_show
from rljob_api.validation import render_problems, validate
from tests.rljob_api.job_files import GOOD, JOB

MINIMAL = {"model": {"path": "m"}, "data": {"train": ["t"]}, "training": {"steps": 1}}


def algorithm(**fields):
    return resolve(RLJobSpec.model_validate(MINIMAL | {"algorithm": fields})).algorithm


def test_grpo_is_the_paper_s():
    """Shao et al. 2024, equation 3: the mean over responses of each one's token mean, less the k3 estimate."""
    grpo = algorithm(preset="grpo")
    assert (grpo.advantage, grpo.loss, grpo.aggregation) == ("grpo", "clip", "sequence_mean")
    assert (grpo.kl.placement, grpo.kl.estimator, grpo.kl.controller) == ("loss", "k3", "fixed")
    assert not grpo.dynamic_sampling.enabled


def test_dapo_is_the_paper_s():
    """Yu et al. 2025, sections 4.1 (epsilon low 0.2, high 0.28), 3.3 (token-level loss), 3.2 and 2.3 (no KL)."""
    dapo = algorithm(preset="dapo")
    assert (dapo.loss, dapo.clip_ratio_low, dapo.clip_ratio_high) == ("decoupled_clip", 0.2, 0.28)
    assert (dapo.aggregation, dapo.dynamic_sampling.enabled, dapo.kl.placement) == ("token_mean", True, "none")
    assert dapo.entropy_coefficient == 0


def test_dr_grpo_is_the_paper_s():
    """Liu et al. 2025, section 3.2: neither the standard deviation nor the response's length divides."""
    dr_grpo = algorithm(preset="dr_grpo")
    assert (dr_grpo.advantage, dr_grpo.aggregation, dr_grpo.kl.placement) == ("dr_grpo", "dr_grpo", "none")


def test_rloo_is_the_paper_s():
    """Ahmadian et al. 2024: the KL penalty is part of the reward, and the other samples are the baseline."""
    rloo = algorithm(preset="rloo")
    assert (rloo.advantage, rloo.kl.placement, rloo.kl.estimator) == ("rloo", "reward", "k1")


def test_reinforce_plus_plus_is_the_paper_s():
    """Hu et al. 2025: k1 in the token's reward without discount; the baseline form takes k2 in the loss."""
    plain, baseline = algorithm(preset="reinforce_plus_plus"), algorithm(preset="reinforce_plus_plus_baseline")
    assert (plain.advantage, plain.kl.placement, plain.kl.estimator, plain.gamma) == (
        "reinforce_plus_plus", "reward", "k1", 1.0
    )  # fmt: skip
    assert (baseline.advantage, baseline.kl.placement, baseline.kl.estimator) == (
        "reinforce_plus_plus_baseline", "loss", "k2"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("preset", "expected"),
    [  # advantage, loss, aggregation, clip range; from the papers that PresetRow.paper names
        ("gspo", ("grpo", "gspo", "sequence_mean", 3e-4, 4e-4)),
        ("gmpo", ("grpo", "geo_mean", "sequence_mean", 0.4, 0.4)),
        ("cispo", ("grpo", "cispo", "token_mean", 1.0, 4.0)),
        ("dppo", ("dr_grpo", "dppo_tv", "dr_grpo", 0.15, 0.15)),
    ],
)
def test_a_preset_s_loss_brings_its_own_clip_range(preset, expected):
    row = algorithm(preset=preset)
    assert (row.advantage, row.loss, row.aggregation, row.clip_ratio_low, row.clip_ratio_high) == expected


def test_a_loss_that_the_spec_chooses_brings_its_clip_range_too():
    chosen = algorithm(preset="dapo", loss="gspo", clipRatioHigh=0.01)
    assert (chosen.clip_ratio_low, chosen.clip_ratio_high) == (3e-4, 0.01)


def test_the_reference_follows_in_steps_of_rl():
    spec = RLJobSpec.model_validate(MINIMAL | {"sft": {"steps": 3}, "algorithm": {"kl": {"refreshEvery": 2}}})
    assert [step for step in range(1, 9) if resolve(spec).refreshes_reference(step)] == [5, 7]


def test_the_spec_wins_over_its_preset():
    resolved = algorithm(preset="dapo", clipRatioHigh=0.5, kl={"placement": "loss"}, dynamicSampling={"maxRounds": 9})
    assert (resolved.clip_ratio_low, resolved.clip_ratio_high) == (0.2, 0.5)
    assert (resolved.kl.placement, resolved.kl.estimator) == ("loss", "k3")
    assert (resolved.dynamic_sampling.enabled, resolved.dynamic_sampling.max_rounds) == (True, 9)


@pytest.mark.parametrize(
    ("cluster", "ranks"),
    [
        ({}, 8),
        ({"nodes": 3, "gpusPerNode": 2}, 6),
        ({"nodes": 3, "gpusPerNode": 0}, 3),
        ({"gpusPerNode": 0, "ranksPerNode": 2}, 2),
    ],
)
def test_ranks_follow_gpus_or_are_one_a_node(cluster, ranks):
    assert resolve(RLJobSpec.model_validate(MINIMAL | {"cluster": cluster})).ranks == ranks


def test_fields_that_follow_others_are_filled():
    scratch = {"model": {"fromScratch": {"hiddenSize": 128, "heads": 4}}, "sft": {"steps": 20}}
    resolved = resolve(RLJobSpec.model_validate(MINIMAL | scratch))
    assert resolved.actor.mini_batch_size == resolved.data.prompts_per_step == 128
    assert resolved.model.from_scratch is not None
    assert (resolved.model.from_scratch.kv_heads, resolved.model.from_scratch.intermediate_size) == (4, 512)
    assert resolved.total_steps == 21
    assert resolved.needs_reference
    assert not resolved.supervised_only


@pytest.mark.parametrize("preset", ["dapo", "sft"])
def test_no_reference_model_without_a_penalty(preset):
    assert not resolve(RLJobSpec.model_validate(MINIMAL | {"algorithm": {"preset": preset}})).needs_reference


@pytest.mark.parametrize("row", GOOD, ids=lambda row: row.name)
def test_resolving_changes_nothing_the_second_time(row):
    (job,) = validate(row.text, "job.yaml").jobs
    before = job.model_copy(deep=True)
    resolved = resolve(job.spec)
    assert resolve(resolved) == resolved
    assert job == before


@pytest.mark.parametrize("row", GOOD, ids=lambda row: row.name)
def test_what_show_prints_is_the_same_job(row):
    (job,) = validate(row.text, "job.yaml").jobs
    text = render_show(job)
    again = validate(text, "shown.yaml")
    assert render_problems(again.problems) == ""
    assert resolve(again.jobs[0].spec) == resolve(job.spec)
    assert render_show(again.jobs[0]) == text


def test_show_prints_blocks_in_the_order_of_the_api_and_source_as_a_block():
    text = JOB.replace("builtin: gsm8k", 'source: "def compute_score(*row):\\n  return 1.0\\n"')
    shown = render_show(validate(text, "job.yaml").jobs[0])
    blocks = [line.strip(" :") for line in shown.splitlines() if line.startswith("  ") and line[2] != " "]
    assert blocks[1:] == [
        "model",
        "data",
        "algorithm",
        "rollout",
        "actor",
        "rewards",
        "training",
        "checkpoint",
        "cluster",
        "gang",
        "env: []",
        "envFrom: []",
        "volumes: []",
        "volumeMounts: []",
        "imagePullSecrets: []",
        "preflight: {}",
        "recovery",
        "suspend: false",
        "ttlAfterFinished: 0s",
    ]
    assert "    - source: |\n        def compute_score(*row):\n          return 1.0\n" in shown
    assert "clipRatioHigh" not in shown


def test_show_leaves_out_what_a_supervised_job_does_not_read():
    (row,) = (row for row in GOOD if row.name == "supervised only")
    spec = yaml.safe_load(render_show(validate(row.text, "job.yaml").jobs[0]))["spec"]
    assert spec["algorithm"] == {"preset": "sft"}
    assert not {"rollout", "rewards"} & set(spec)
    assert not {"miniBatchSize", "epochs"} & set(spec["actor"])
    assert spec["actor"]["learningRate"] == 1e-6
