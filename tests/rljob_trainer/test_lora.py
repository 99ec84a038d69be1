"""The policy with an adapter on a rank, against peft: what it computes, trains, saves, compares with and sends."""

import copy
import json
import shutil
import time
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel
from peft.tuners.lora import Linear as PeftLinear
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel

from rljob_api import ResolvedSpec
from rljob_api.resolve import ResolvedLora
from rljob_trainer.checkpoint.export import export_adapter, export_model
from rljob_trainer.checkpoint.manifest import MODEL, RANKS, commit
from rljob_trainer.errors import DataError, JobError
from rljob_trainer.lora.base import check_continued, write_base
from rljob_trainer.lora.files import ADAPTER, CONFIG, TENSORS, is_adapter, read_tensors, write_config
from rljob_trainer.lora.layers import LoraLinear
from rljob_trainer.lora.source import with_adapter
from rljob_trainer.rank.rank import Rank
from rljob_trainer.rank.sending import sent_tensors
from rljob_trainer.volume import Volume
from tests.rljob_trainer.checkpoint_support import make_spec
from tests.rljob_trainer.lora_support import LORA, lora_spec, peft_model, write_adapter
from tests.rljob_trainer.rank_support import (
    MARK,
    alone,
    bundle_of,
    largest_difference,
    plans_of,
    random_advantages,
    random_trajectories,
    record_gradients,
    whole,
    write_model,
)
from tests.rljob_trainer.rollout_support import write_model_dir

TRAJECTORIES = random_trajectories(6, seed=3)
ADVANTAGES = random_advantages(TRAJECTORIES, seed=3)
RATE = 1e-2


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def adapter(tmp_path_factory, folder):
    path = tmp_path_factory.mktemp("adapter")
    write_adapter(folder, path)
    return path


def continuing(adapter, ranks=1, **blocks):
    return with_adapter(lora_spec(ranks, lora={"path": str(adapter)}, **blocks), adapter)


def plain_log_probs(model, trajectories):
    found = []
    for each in trajectories:
        ids = torch.from_numpy(each.token_ids).long()[None]
        scored = model(input_ids=ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
        found.append(scored[torch.from_numpy(each.in_loss[1:])])
    return torch.cat(found)


def supervise(worker: Rank, rate=RATE, step=MARK):
    plans, totals = plans_of(TRAJECTORIES, worker.settings.world, 50)
    worker.supervised_step(plans[worker.settings.rank], totals, TRAJECTORIES, rate, step)


def prepare(worker: Rank):
    plans, totals = plans_of(TRAJECTORIES, worker.settings.world, 50)
    plan = plans[worker.settings.rank]
    places, groups = bundle_of(TRAJECTORIES)
    worker.prepare(plan, totals, places, groups)
    return plan


def train(worker: Rank, rate=RATE):
    """One RL step."""
    plan = prepare(worker)
    return worker.update([ADVANTAGES[i] for i in plan.samples], rate, 0.0, MARK)


def trained(worker: Rank):
    """Collective."""
    named = worker.policy.network.named_parameters()
    return {name: whole(each) for name, each in named if each.requires_grad}


def start(worker: Rank, folder, stage="sft"):
    worker.load(folder)
    worker.begin_stage(stage)


def score_and_differentiate(worker, folder):
    start(worker, folder)
    log_probs = np.concatenate(worker.log_probs(TRAJECTORIES))
    gradients = record_gradients(worker)
    supervise(worker)
    return log_probs, gradients[0]


@pytest.mark.parametrize("ranks", [1, 2])
def test_an_adapter_of_peft_has_the_log_probabilities_and_gradients_that_it_has_there(
    folder, adapter, two_ranks, ranks
):
    spec = continuing(adapter, ranks, actor={"gradClip": 1e6})
    if ranks == 1:
        ours, gradients = alone(spec, score_and_differentiate, folder)
    else:
        ours, gradients = two_ranks.run(spec, score_and_differentiate, folder)[0]
    theirs = peft_model(folder)
    expected = plain_log_probs(theirs, TRAJECTORIES)
    (-expected.mean()).backward()
    np.testing.assert_allclose(ours, expected.detach(), atol=1e-5)
    base = plain_log_probs(AutoModelForCausalLM.from_pretrained(folder), TRAJECTORIES)
    assert (expected - base).abs().mean() > 0.05, "the adapter matters"
    found = {f"base_model.model.{name}".replace(".weight", ".default.weight"): each for name, each in gradients.items()}
    wanted = {name: each.grad for name, each in theirs.named_parameters() if each.grad is not None}
    assert largest_difference(found, wanted) < 1e-4


def test_a_fresh_adapter_changes_nothing_and_is_drawn_by_the_seed(folder):
    def matrices_of(spec):
        return alone(spec, lambda worker: (start(worker, folder), trained(worker), worker.log_probs(TRAJECTORIES))[1:])

    first, log_probs = matrices_of(lora_spec())
    again, _ = matrices_of(lora_spec())
    other, _ = matrices_of(lora_spec(training={"steps": 1, "seed": 1}))
    torch.testing.assert_close(again, first, rtol=0, atol=0)
    base = plain_log_probs(AutoModelForCausalLM.from_pretrained(folder), TRAJECTORIES)
    np.testing.assert_allclose(np.concatenate(log_probs), base.detach(), atol=1e-5)
    for name, matrix in first.items():
        assert "lora_A" not in name or (not torch.equal(other[name], matrix) and matrix.std() > 0.05)


def test_all_linear_means_what_peft_means_by_it(folder):
    spec = lora_spec(lora={"rank": 2})
    ours = alone(spec, lambda worker: (start(worker, folder), set(trained(worker)))[1])
    theirs = peft_model(folder, target_modules="all-linear").named_parameters()
    names = {name for name, each in theirs if each.requires_grad}
    assert {f"base_model.model.{name}".replace(".weight", ".default.weight") for name in ours} == names


def test_only_the_adapter_trains(folder):
    def weights(worker):
        start(worker, folder, "rl")
        before = {name: whole(each) for name, each in worker.policy.network.named_parameters()}
        train(worker)
        return before, {name: whole(each) for name, each in worker.policy.network.named_parameters()}

    before, after = alone(lora_spec(actor={"weightDecay": 0}), weights)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {name for name in before if name.endswith("lora_B.weight")}, "A's gradient is zero while B is"


def train_save_train(worker, folder, directory):
    start(worker, folder, "rl")
    train(worker)
    train(worker)
    worker.begin_save(directory)
    worker.finish_save()
    keys = {name: set(state["model"]) for name, state in worker.saved_state().items()}
    train(worker)
    return keys, trained(worker), worker.log_probs(TRAJECTORIES)


def restore_train(worker, folder, directory):
    start(worker, folder, "rl")
    worker.restore(directory)
    train(worker)
    return trained(worker)


@pytest.mark.parametrize("writers", [1, 2])
def test_a_checkpoint_holds_the_adapter_alone_and_continues_on_any_number_of_ranks(
    folder, tmp_path, two_ranks, writers
):
    directory = str(tmp_path / "ranks")

    def run(ranks, task):
        spec = lora_spec(ranks, algorithm={"kl": {"refreshEvery": 10}})
        return alone(spec, task, folder, directory) if ranks == 1 else two_ranks.run(spec, task, folder, directory)[0]

    keys, later, _ = run(writers, train_save_train)
    assert keys["policy"] == set(later)
    assert all(map(is_adapter, keys["policy"]))
    assert len(keys["reference"]) == len(later)
    for readers in (1, 2):
        gap = 0 if readers == writers else 1e-6
        torch.testing.assert_close(run(readers, restore_train), later, rtol=0, atol=gap)


def reference_scores(worker, folder):
    """Log-probabilities of the reference after two steps, and the policy's before and after."""
    start(worker, folder, "sft")
    if worker.spec.sft:
        supervise(worker)
    worker.begin_stage("rl")
    before = np.concatenate(worker.log_probs(TRAJECTORIES))
    train(worker)
    train(worker)
    after = np.concatenate(worker.log_probs(TRAJECTORIES))
    with worker.reference.scoring() as policy:
        batch = policy.pack(TRAJECTORIES, worker.device)
        scored = policy(batch, False)[0].detach().numpy()
    assert np.array_equal(after, np.concatenate(worker.log_probs(TRAJECTORIES))), "the policy is back"
    return before, after, scored, worker.reference.role is not None


@pytest.mark.parametrize(
    ("start_with", "blocks", "copies"),
    [
        ({}, {}, False),
        ({}, {"sft": {"steps": 1}}, True),
        ({}, {"algorithm": {"kl": {"refreshEvery": 10}}}, True),
        ("adapter", {}, True),
    ],
    ids=["a fresh adapter", "supervised steps", "refreshed", "an adapter of a path"],
)
def test_the_reference_is_the_policy_as_rl_began(folder, adapter, start_with, blocks, copies):
    spec = continuing(adapter, **blocks) if start_with else lora_spec(**blocks)
    before, after, scored, copied = alone(spec, reference_scores, folder)
    np.testing.assert_allclose(scored, before, atol=1e-6)
    assert np.abs(after - before).mean() > 1e-3
    assert copied == copies


def sent(worker, folder, whole_model):
    start(worker, folder)
    return dict(sent_tensors(worker.policy.network, worker.spec, whole_model, worker.device, torch.float32))


@pytest.mark.parametrize("ranks", [1, 2])
def test_merged_weights_are_those_that_peft_merges(folder, adapter, two_ranks, ranks):
    spec = with_adapter(lora_spec(ranks, lora={"path": str(adapter), "merge": True}), adapter)
    ours = alone(spec, sent, folder, False) if ranks == 1 else two_ranks.run(spec, sent, folder, False)[0]
    theirs = dict(peft_model(folder).merge_and_unload().named_parameters())
    assert largest_difference(ours, theirs) < 1e-6


def test_an_engine_gets_the_model_once_and_then_the_adapter_in_pefts_names(folder, adapter):
    spec = continuing(adapter)
    plain, written = AutoModelForCausalLM.from_pretrained(folder).state_dict(), read_tensors(adapter)
    alone_sent = alone(spec, sent, folder, False)
    torch.testing.assert_close(
        alone_sent, {f"base_model.model.{name}": each for name, each in written.items()}, rtol=0, atol=0
    )
    both = alone(spec, sent, folder, True)
    torch.testing.assert_close(both, {**plain, **alone_sent}, rtol=0, atol=0)


def test_dropout_acts_in_training_alone_and_by_the_seed(folder):
    def run(worker):
        start(worker, folder, "rl")
        before = worker.log_probs(TRAJECTORIES)
        train(worker)
        train(worker)
        assert all(np.array_equal(*pair) for pair in zip(before, worker.log_probs(TRAJECTORIES), strict=True)) is False
        return trained(worker)

    def with_dropout(share):
        return alone(lora_spec(lora=LORA | {"dropout": share}), run)

    first = with_dropout(0.3)
    torch.testing.assert_close(with_dropout(0.3), first, rtol=0, atol=0)
    plain = with_dropout(0.0)
    assert any(not torch.allclose(first[name], plain[name], atol=1e-6) for name in first)


def test_a_bypass_with_dropout_reports_what_the_policy_says_without_it(folder, adapter):
    def run(worker):
        start(worker, folder, "rl")
        before = np.concatenate(worker.log_probs(TRAJECTORIES))
        return np.abs(before + 1).mean(), train(worker).importance.finish().mean_difference

    lora, bypass = {"path": str(adapter), "dropout": 0.5}, {"rolloutCorrection": {"bypassMode": True}}
    spec = with_adapter(lora_spec(lora=lora, algorithm=bypass), adapter)
    expected, found = alone(spec, run)
    assert found == pytest.approx(expected, rel=1e-5)


def test_a_checkpoint_in_the_making_holds_the_adapter_and_not_the_one_that_scores_for_the_reference(folder, tmp_path):
    """The saving thread is slow: it copies while the next step scores with the reference's adapter in its place."""

    def run(worker, monkeypatch):
        start(worker, folder, "rl")
        train(worker)
        scoring, take, scored = worker.reference.scoring, worker.saver._copy.take, Event()
        saved = []

        @contextmanager
        def slow_scoring():
            with scoring() as policy:
                scored.set()
                time.sleep(0.2)
                yield policy

        def slow_take(state):
            scored.wait(0.5)
            saved.append({name: whole(each) for name, each in take(state)["policy"]["model"].items()})
            return state

        monkeypatch.setattr(worker.reference, "scoring", slow_scoring)
        monkeypatch.setattr(worker.saver._copy, "take", slow_take)
        expected = trained(worker)
        worker.begin_save(str(tmp_path / "ranks"))
        prepare(worker)
        worker.finish_save()
        torch.testing.assert_close(saved[0], expected, rtol=0, atol=0)

    with pytest.MonkeyPatch.context() as monkeypatch:
        alone(lora_spec(algorithm={"kl": {"refreshEvery": 10}}), run, monkeypatch)


def test_in_bfloat16_the_frozen_model_is_and_the_adapter_is_not(folder):
    def dtypes(worker):
        start(worker, folder, "rl")
        train(worker)
        return {name: each.dtype for name, each in worker.policy.network.named_parameters()}

    found = alone(make_spec(model={"path": "model", "dtype": "bfloat16", "lora": LORA}), dtypes)
    assert {is_adapter(name): dtype for name, dtype in found.items()} == {True: torch.float32, False: torch.bfloat16}


@pytest.mark.slow
def test_a_compiled_layer_rounds_where_pefts_does():
    """And vLLM's. In bfloat16 most of what a young adapter adds is less than half a rounding of W x."""
    ours: Any = nn.Linear(64, 96, bias=False, dtype=torch.bfloat16)
    matrices = torch.Generator().manual_seed(1)
    theirs: Any = PeftLinear(copy.deepcopy(ours), "default", LoraConfig(), r=4, lora_alpha=4)
    LoraLinear.extend(ours, ResolvedLora(rank=4, alpha=4, target_modules=["all-linear"]))
    with torch.no_grad():
        for own, other, size in ((ours.lora_A, theirs.lora_A, 0.1), (ours.lora_B, theirs.lora_B, 1e-3)):
            own.weight.copy_(size * torch.randn(own.weight.shape, generator=matrices))
            other["default"].to(torch.bfloat16).weight.copy_(own.weight)
    ours.compiled, given = True, torch.randn(50, 64, generator=matrices).bfloat16()
    found, plain = torch.compile(ours.forward, dynamic=True)(given), nn.functional.linear(given, ours.weight)
    assert torch.equal(found, theirs(given))
    assert 0 < (found != plain).float().mean() < 0.5


def test_a_module_that_the_model_lacks_is_named_with_those_that_it_has(folder):
    for wrong in ("w_proj", "lm_head"):
        with pytest.raises(JobError, match=f"no linear layer {wrong} .*choose from .*down_proj.*q_proj") as raised:
            alone(lora_spec(lora={"targetModules": ["q_proj", wrong]}), Rank.load, folder)
        assert raised.value.field == "spec.model.lora.targetModules"


@pytest.mark.parametrize("block", ["model", "critic"])
def test_a_model_without_linear_layers_can_have_no_adapter(tmp_path, block):
    config = GPT2Config(vocab_size=260, n_embd=16, n_layer=1, n_head=1)  # its layers are Conv1D
    GPT2LMHeadModel(config).save_pretrained(tmp_path)
    blocks: dict[str, Any] = {"model": {"path": "model"}, "algorithm": {"preset": "ppo"}, "critic": {}}
    blocks[block] = blocks[block] | {"lora": {"rank": 4}}
    with pytest.raises(JobError, match=f"gpt2 has no linear layer .* remove spec.{block}.lora") as raised:
        alone(make_spec(**blocks), start, str(tmp_path), "rl")
    assert raised.value.field == f"spec.{block}.lora"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"use_rslora": True}, "use_rslora true"),
        ({"rank_pattern": {"q_proj": 2}}, "rank_pattern"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights"),
        ({"init_lora_weights": "OLoRA"}, "init_lora_weights"),
    ],
)
def test_an_adapter_that_computes_more_is_refused(folder, tmp_path, changes, problem):
    write_adapter(folder, tmp_path, **changes)
    with pytest.raises(DataError, match=rf"has {problem}.*not supported"):
        continuing(tmp_path)


def test_an_adapter_that_is_missing_or_fits_another_model_is_refused(folder, tmp_path, adapter):
    with pytest.raises(DataError, match="no folder nowhere"):
        with_adapter(lora_spec(lora={"path": "nowhere"}), tmp_path)
    with pytest.raises(DataError, match=f"{CONFIG} cannot be read"):
        continuing(tmp_path)
    (tmp_path / CONFIG).write_text((adapter / CONFIG).read_text())
    with pytest.raises(DataError, match=f"{TENSORS} cannot be read"):
        continuing(tmp_path)
    (tmp_path / TENSORS).write_bytes((adapter / TENSORS).read_bytes())
    config = json.loads((tmp_path / CONFIG).read_text())
    (tmp_path / CONFIG).write_text(json.dumps(config | {"r": 8}))
    with pytest.raises(DataError, match=r"lora_A.weight should be finite numbers \[8, 32\], and is \[4, 32\]"):
        alone(continuing(tmp_path), Rank.load, folder)


def checkpoint_of(worker, folder, tokenizer, run):
    """A checkpoint as the driver writes it, and what its policy computes."""
    target = Volume(run).checkpoint(1, 1)
    staged = target.with_name(f".{target.name}.part")
    AutoTokenizer.from_pretrained(tokenizer).save_pretrained(staged / MODEL)
    (staged / MODEL / "config.json").write_bytes((Path(folder) / "config.json").read_bytes())
    write_config(staged / MODEL / ADAPTER, worker.spec.model.lora, folder)
    write_base(staged / MODEL / ADAPTER, Path(folder))
    start(worker, folder, "rl")
    train(worker)
    train(worker)
    worker.begin_save(str(staged / RANKS))
    worker.finish_save()
    return commit(staged, target, step=1, attempt=1, reward=None), np.concatenate(worker.log_probs(TRAJECTORIES))


def test_a_checkpoint_is_exported_as_an_adapter_of_peft_or_merged(folder, tmp_path):
    tokenizer = write_model_dir(tmp_path / "tokenizer")
    ref, expected = alone(lora_spec(), checkpoint_of, folder, tokenizer, tmp_path / "run")
    size = export_adapter(ref, tmp_path / "adapter", "float32")
    assert size == sum(each.nbytes for each in read_tensors(tmp_path / "adapter").values())
    base = AutoModelForCausalLM.from_pretrained(folder)
    read = PeftModel.from_pretrained(base, str(tmp_path / "adapter"))
    np.testing.assert_allclose(plain_log_probs(read, TRAJECTORIES).detach(), expected, atol=1e-5)
    export_model(ref, tmp_path / "merged", "float32")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    np.testing.assert_allclose(plain_log_probs(merged, TRAJECTORIES).detach(), expected, atol=1e-5)
    with pytest.raises(DataError, match=r"cannot be added to the model in .*nowhere.*--base"):
        export_model(ref, tmp_path / "other", "float32", base=tmp_path / "nowhere")
    assert not (tmp_path / "other").exists()


def lora_of(spec: ResolvedSpec) -> ResolvedLora:
    assert spec.model.lora is not None
    return spec.model.lora


def test_another_model_under_the_adapter_is_refused(folder, tmp_path):
    """In the run's next attempt, and in an export from the place where the run found it."""
    tokenizer, base = write_model_dir(tmp_path / "tokenizer"), tmp_path / "base"
    shutil.copytree(folder, base)
    ref, _ = alone(lora_spec(), checkpoint_of, str(base), tokenizer, tmp_path / "run")
    saved, lora = ref.path / MODEL / ADAPTER, lora_of(lora_spec())
    check_continued(saved, lora, Path(folder))
    whole_file = bytearray((base / "model.safetensors").read_bytes())
    for change in (whole_file[:-1] + bytes([whole_file[-1] ^ 1]), whole_file + b"0"):
        (base / "model.safetensors").write_bytes(change)
        with pytest.raises(DataError, match=r"not those of the model that was adapted: .*resume to never") as raised:
            check_continued(saved, lora, base)
        assert raised.value.field == "spec.model.path"
    with pytest.raises(DataError, match=r"not those of the model that was adapted: .*--base"):
        export_model(ref, tmp_path / "merged", "float32")
    with pytest.raises(DataError, match="not those of the model that was adapted"):
        export_model(ref, tmp_path / "merged", "float32", base=base)
    export_model(ref, tmp_path / "merged", "float32", base=Path(folder))


def test_an_adapter_that_computes_something_else_than_the_runs_is_refused(folder, tmp_path):
    """In a file that is continued, and in the spec: fewer layers, or another scale."""
    write_adapter(folder, tmp_path / "adapter")
    write_config(tmp_path / "run", lora_of(continuing(tmp_path / "adapter")), folder)
    changed = json.loads((tmp_path / "adapter" / CONFIG).read_text()) | {"lora_alpha": 20}
    (tmp_path / "adapter" / CONFIG).write_text(json.dumps(changed))
    write_config(tmp_path / "spec", lora_of(lora_spec()), folder)
    check_continued(tmp_path / "spec", lora_of(lora_spec(lora=LORA | {"dropout": 0.1})), Path(folder))
    for run, spec, problem, field in (
        ("run", continuing(tmp_path / "adapter"), r"alpha is no longer .*\(10.0\)", "spec.model.lora.path"),
        ("spec", lora_spec(lora=LORA | {"targetModules": ["q_proj"]}), r'targetModules .*"q_proj"', "spec.model.lora"),
    ):
        with pytest.raises(DataError, match=problem) as raised:
            check_continued(tmp_path / run, lora_of(spec), Path(folder))
        assert raised.value.field == field
