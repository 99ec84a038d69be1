"""Plans of GPU memory against figures that were measured, and against the allocations of a rank on a CPU."""

import json
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from torch.profiler import ProfilerActivity, profile
from transformers import GPT2Config, OpenAIGPTConfig, Qwen2Config

from bench.models.architectures import config_of
from rljob_trainer.engines.engine import EngineSettings
from rljob_trainer.engines.registry import measures_memory
from rljob_trainer.engines.vllm import start
from rljob_trainer.memory.critic import critic_size
from rljob_trainer.memory.defaults import with_defaults
from rljob_trainer.memory.gpus import gpu_bytes
from rljob_trainer.memory.held import GIB
from rljob_trainer.memory.measured import model_size
from rljob_trainer.memory.phases import phases, update_peak
from rljob_trainer.memory.plan import plan, second_engine
from rljob_trainer.memory.table import _ROWS
from rljob_trainer.memory.work import Work, work_of
from rljob_trainer.types import answered
from tests.rljob_trainer.checkpoint_support import make_spec
from tests.rljob_trainer.cli_support import rljob
from tests.rljob_trainer.rank_support import MARK, alone, bundle_of, plans_of

SHAPES = {"0.5B": (896, 4864, 24, 14, 2), "1.5B": (1536, 8960, 28, 12, 2), "7B": (3584, 18944, 28, 28, 4)}
"""Qwen2.5: width, width of the MLP, layers, heads, KV heads."""

H100 = gpu_bytes("H100-80GB")


def config(shape, vocabulary=151_936):
    hidden, wide, layers, heads, kv_heads = shape
    return Qwen2Config(
        vocab_size=vocabulary, hidden_size=hidden, intermediate_size=wide, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=kv_heads, tie_word_embeddings=shape != SHAPES["7B"],
        max_position_embeddings=32_768, eos_token_id=0, bos_token_id=None, pad_token_id=0,
        architectures=["Qwen2ForCausalLM"],
    )  # fmt: skip


@pytest.fixture(scope="module")
def sizes():
    return {name: model_size(config(shape)) for name, shape in SHAPES.items()}


def spec_of(ranks=1, **blocks):
    data = {"train": ["rows.jsonl"], "maxResponseTokens": 512}
    return make_spec(**{"cluster": {"gpusPerNode": ranks}, "data": data, **blocks})


@pytest.mark.parametrize(
    ("name", "parameters"), [("0.5B", 494_032_768), ("1.5B", 1_543_714_304), ("7B", 7_615_616_512)]
)
def test_a_block_keeps_what_is_counted_by_hand(sizes, name, parameters):
    """Bytes a token. Each norm: a copy in float32, the normalised one, the scaled one; queries, keys, values, the
    attention's output; gate, activation, up, product. Compiled: the norm's input, the scaled one; no activation.
    """
    hidden, wide, layers, heads, kv_heads = SHAPES[name]
    kv = hidden // heads * kv_heads
    size = sizes[name]
    assert size.saved == pytest.approx(2 * (4 + 2 + 2) * hidden + 2 * (2 * hidden + 2 * kv) + 4 * 2 * wide, rel=0.01)
    assert size.compiled == pytest.approx(2 * (2 + 2) * hidden + 2 * (2 * hidden + 2 * kv) + 3 * 2 * wide, rel=0.01)
    assert size.kv.nbytes == layers * 2 * kv * 2
    assert size.parameters == pytest.approx(parameters, rel=1e-3)


def test_a_model_that_looks_for_its_padding_is_measured():
    """GPT-2's forward pass reads tokens, which have no values here, if its configuration has a padding token."""
    small = GPT2Config(
        vocab_size=96, n_positions=64, n_embd=64, n_layer=2, n_head=2, eos_token_id=1, bos_token_id=1, pad_token_id=0
    )
    size = model_size(small)
    assert (size.layers, size.hidden, size.kv.nbytes) == (2, 64, 2 * 2 * 64 * 2)


@pytest.mark.parametrize(("name", "head"), [("1.5B", 0), ("7B", 151_936 * 3584)])
def test_a_critic_takes_as_much_as_a_policy_without_output_head(sizes, name, head):
    """The head of 1.5B is its embeddings, which a critic has too; that of 7B is a matrix of its own."""
    spec = spec_of(algorithm={"preset": "ppo"})
    size = sizes[name]
    critic = critic_size(spec, size, Path())
    with_critic, without = (phases(size, work_of(spec, each), H100) for each in (critic, None))
    assert with_critic["rollout"]["critic"] == 12 * (size.parameters - head)
    assert sum(with_critic["update"].values()) - sum(without["update"].values()) == 12 * (size.parameters - head)


def test_an_adapter_of_the_critic_has_moments_and_the_rest_of_it_bfloat16(sizes):
    scratch = {"layers": 2, "hiddenSize": 64, "heads": 2, "tokenizer": {"kind": "byte"}}
    spec = spec_of(model={"fromScratch": scratch}, algorithm={"preset": "ppo"}, critic={"lora": {"rank": 4}})
    critic = critic_size(spec, sizes["0.5B"], Path())
    assert critic is not None
    linear = 4 * (64 + 64) + 3 * (64 + 256)  # inputs and outputs of a layer's linear layers
    assert critic.adapter == critic.trained == 2 * 4 * linear
    assert (
        phases(critic, work_of(spec, critic), H100)["rollout"]["critic"] == 2 * critic.parameters + 12 * critic.adapter
    )


@pytest.mark.parametrize("ranks", [1, 4])
def test_a_teacher_takes_its_weights_in_bfloat16_shared_among_ranks(sizes, ranks):
    spec = spec_of(ranks, algorithm={"preset": "distillation", "teacher": {"path": "teacher"}})
    parts = phases(sizes["0.5B"], work_of(spec, teacher=sizes["7B"]), H100)
    assert [phase["teacher"] for phase in parts.values()] == [2 * sizes["7B"].parameters // ranks] * 3


def test_latent_attention_caches_one_vector_for_all_heads():
    latent = config_of("deepseek_v3")
    kv = model_size(latent).kv
    assert kv.nbytes == kv.on_gpu(8) == latent.num_hidden_layers * (latent.kv_lora_rank + latent.qk_rope_head_dim) * 2


def test_an_update_takes_what_was_measured_on_a_gpu(sizes):
    """torch's peak in GiB, on an H200: 1.5B with compiled layers, passes of 16 x 640 tokens, one rank.

    Source: docs/benchmarks/update.md.
    """
    spec = spec_of(algorithm={"kl": {"placement": "none"}}, actor={"recompute": "none"})
    work = replace(work_of(spec), tokens=16 * 640, compiled=True)
    assert update_peak(sizes["1.5B"], work) / GIB == pytest.approx(48.05, rel=0.1)


@pytest.mark.parametrize(
    ("shape", "recompute", "measured"), [("1.5B", "none", 38_971_674_112), ("7B", "layer", 27_403_054_080)]
)
def test_an_update_of_a_compiled_adapter_takes_what_was_measured_on_a_gpu(shape, recompute, measured):
    """torch's peak on an H200, rank 32, passes of 16,384 tokens: runs of 05cef727 and 36062e7b, docs/benchmarks/gpu."""
    spec = spec_of(
        model={"path": "m", "lora": {"rank": 32}}, algorithm={"kl": {"placement": "none"}},
        actor={"recompute": recompute},
    )  # fmt: skip
    work = replace(work_of(spec), tokens=16_384, compiled=True)
    size = model_size(config(SHAPES[shape]), lora=spec.model.lora)
    assert update_peak(size, work) == pytest.approx(measured, rel=0.1)


def test_the_run_that_ended_at_its_first_sync_is_understood(sizes):
    """0.5B, 40,960 tokens a pass, no recomputation, on an H100: the update ran, and then the engine found no room.

    Source: "Our own trainer in the same run" of the peers' README, 2026-11-27. Ranks kept what they had allocated.
    """
    actor = {"tokensPerMicroBatch": 40_960, "recompute": "none"}
    work = work_of(spec_of(algorithm={"kl": {"placement": "none"}}, actor=actor))
    found = plan(sizes["0.5B"], replace(work, whole_share=True), H100)  # as every engine did then
    assert not found.too_much
    assert found.peaks["update"] + found.phases["sync"]["KV cache"] > H100


SMALL = (192, 768, 3, 3, 1)


def peak_of_an_update(worker, folder, budget):
    """Bytes that a rank allocates in its second update at most, beyond those that it keeps, as PyTorch counts them."""
    draw = np.random.default_rng(0)
    drawn = [draw.integers(1, 500, 128).astype(np.int32) for _ in range(16)]
    samples = [answered(each[:8], each[8:], np.full(120, -1.0, np.float32), 0, 1.0, "length") for each in drawn]
    plans, totals = plans_of(samples, 1, budget)
    advantages = [np.ones(each.loss_tokens, np.float32) for each in samples]
    worker.load(folder)
    worker.begin_stage("rl")
    worker.prepare(plans[0], totals, *bundle_of(samples))
    worker.update(advantages, 1e-5, 0.0, MARK)
    worker.prepare(plans[0], totals, *bundle_of(samples))
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        worker.update(advantages, 1e-5, 0.0, MARK)
    events = [each for each in profiled.profiler.kineto_results.events() if each.name() == "[memory]"]
    return np.cumsum([each.nbytes() for each in sorted(events, key=lambda each: each.start_ns())]).max()


@pytest.mark.parametrize("recompute", ["layer", "none"])
@pytest.mark.parametrize(("budget", "dtype"), [(1024, "bfloat16"), (2048, "bfloat16"), (1024, "float32")])
def test_an_update_takes_what_a_rank_allocates(tmp_path, recompute, budget, dtype):
    """On a CPU: FSDP2, packed attention, blocks and head as on a GPU. 2048 tokens are one pass."""
    from transformers import AutoModelForCausalLM

    shape = config(SMALL, vocabulary=512)
    AutoModelForCausalLM.from_config(shape).save_pretrained(tmp_path)
    actor = {"recompute": recompute, "compile": False, "tokensPerMicroBatch": budget}
    data = {"train": ["rows.jsonl"], "maxPromptTokens": 8, "maxResponseTokens": 120}
    spec = make_spec(
        model={"path": "m", "dtype": dtype}, algorithm={"kl": {"placement": "none"}}, actor=actor, data=data
    )
    measured = alone(spec, peak_of_an_update, str(tmp_path), budget)
    size, work = model_size(shape, dtype=dtype), replace(work_of(spec), tokens=budget, accumulates=budget < 2048)
    kept = 12 * size.parameters
    assert update_peak(size, work) == pytest.approx(kept + measured, rel=0.1)


def test_an_update_of_an_adapter_takes_what_a_rank_allocates(tmp_path):
    from transformers import AutoModelForCausalLM

    shape = config(SMALL, vocabulary=512)
    AutoModelForCausalLM.from_config(shape).save_pretrained(tmp_path)
    spec = make_spec(
        model={"path": "m", "dtype": "bfloat16", "lora": {"rank": 8}}, algorithm={"kl": {"placement": "none"}},
        actor={"recompute": "none", "compile": False, "tokensPerMicroBatch": 1024},
        data={"train": ["rows.jsonl"], "maxPromptTokens": 8, "maxResponseTokens": 120},
    )  # fmt: skip
    measured = alone(spec, peak_of_an_update, str(tmp_path), 1024)
    size = model_size(shape, lora=spec.model.lora)
    assert size.adapter == 8 * 3 * (2 * (192 + 192) + 2 * (192 + 64) + 3 * (192 + 768))
    kept = 2 * size.parameters + 12 * size.adapter
    assert update_peak(size, replace(work_of(spec), tokens=1024)) == pytest.approx(kept + measured, rel=0.15)


def test_an_adapter_of_rank_32_trains_7b_on_one_gpu_of_80_gb():
    """All weights do not fit there without host memory."""
    lora = {"path": "m", "lora": {}}
    spec = spec_of(model=lora, algorithm={"preset": "grpo"})
    size = model_size(config(SHAPES["7B"]), lora=spec.model.lora)
    assert size.adapter == pytest.approx(81e6, rel=0.01)
    found = plan(size, work_of(spec), H100)
    assert not found.too_much
    assert found.phases["update"]["engine's weights"] == 2 * size.parameters, "vLLM keeps them while it sleeps"
    assert "reference" not in found.phases["update"]
    merging = spec_of(model={"path": "m", "lora": {"merge": True}}, sft={"steps": 1})
    parts = plan(size, work_of(merging), H100).phases["update"]
    assert "engine's weights" not in parts
    assert parts["reference"] == 4 * size.adapter


def test_ranks_share_weights_gradients_and_optimizer(sizes):
    one, four = (phases(sizes["7B"], work_of(spec_of(ranks)), H100)["update"] for ranks in (1, 4))
    for part in ("weights", "optimizer", "gradients", "reference"):
        assert four[part] == pytest.approx(one[part] / 4, rel=1e-6)


def test_float32_doubles_what_is_in_the_compute_dtype_and_casts_no_copy(sizes):
    """Also what decides recomputation: an H100 has room for the activations of 1.5B in bfloat16."""
    spec = spec_of(model={"path": "model", "dtype": "float32"})
    narrow, wide = sizes["1.5B"], model_size(config(SHAPES["1.5B"]), dtype="float32")
    assert (wide.compiled, wide.kv.nbytes) == (2 * narrow.compiled, 2 * narrow.kv.nbytes)
    before, after = (phases(size, work_of(each), H100) for size, each in ((narrow, spec_of()), (wide, spec)))
    for phase, part in (("rollout", "reference"), ("rollout", "engine's weights"), ("sync", "tensor on its way")):
        assert after[phase][part] == 2 * before[phase][part]
    assert "gathered weights" not in after["update"]
    assert with_defaults(spec, wide, H100).actor.recompute == "layer"


def test_what_lies_in_host_memory_takes_none_of_the_gpus(sizes):
    size = sizes["1.5B"]

    def update(offload, recompute="layer"):
        spec = spec_of(
            algorithm={"kl": {"placement": "none"}}, actor={"fsdp": {"offload": offload}, "recompute": recompute}
        )
        return phases(size, work_of(spec), H100)["update"]

    parts = {offload: update(offload) for offload in ("none", "optimizer", "parameters", "all")}
    assert [parts[each].get("weights", 0) for each in parts] == [4 * size.parameters] * 2 + [0, 0]
    assert [parts[each].get("optimizer", 0) for each in parts] == [8 * size.parameters, 0, 8 * size.parameters, 0]
    assert update("optimizer")["gradients"] == 4 * size.parameters
    one_input = 2 * 1536 * 16_384
    assert update("none", "layer")["activations"] - update("none", "offload")["activations"] == (28 - 2) * one_input


def test_engines_of_one_gpu_share_what_one_would_have(sizes):
    size = sizes["0.5B"]
    works = (work_of(spec_of(rollout={"enginesPerGpu": count})) for count in (1, 2))
    one, two = (replace(work, whole_share=True) for work in works)
    before, after = (phases(size, work, H100)["rollout"] for work in (one, two))
    engine = ("engine's weights", "engine's activations", "KV cache")
    assert after["engine's weights"] == 2 * before["engine's weights"]
    assert sum(after[part] for part in engine) == sum(before[part] for part in engine) == int(0.5 * H100)
    cached = plan(size, two, H100).cached
    assert cached is not None
    assert cached * 2 * size.kv.nbytes == pytest.approx(after["KV cache"], rel=1e-3)


@pytest.mark.parametrize(
    ("name", "gpu", "blocks", "advised"),
    [
        ("1.5B", "H200-141GB", {}, True),
        ("0.5B", "H100-80GB", {}, True),
        ("7B", "B200-192GB", {"model": {"path": "model", "lora": {"rank": 8}}}, False),  # its step takes the GPU longer
        ("1.5B", "A100-40GB", {"actor": {"recompute": "layer"}}, False),  # half a share holds half the KV cache
        ("0.5B", "H200-141GB", {"rollout": {"enginesPerGpu": 2}}, False),
        ("0.5B", "H200-141GB", {"rollout": {"engine": "hf"}}, False),
    ],
)
def test_a_plan_advises_a_second_engine_where_it_is_faster_and_fits(sizes, name, gpu, blocks, advised):
    spec = with_defaults(spec_of(**blocks), sizes[name], gpu_bytes(gpu))
    found = plan(sizes[name], work_of(spec), gpu_bytes(gpu))
    assert (second_engine(found) is not None) == advised


def test_an_engine_in_fp8_holds_the_blocks_in_one_byte_and_the_rest_in_two(sizes):
    spec = spec_of(rollout={"quantization": "fp8", "enginesPerGpu": 2})
    parts, size = phases(sizes["7B"], work_of(spec), H100), sizes["7B"]
    assert parts["rollout"]["engine's weights"] == 2 * (28 * size.layer + 2 * size.root)
    assert size.root == 2 * 151_936 * 3584 + 3584  # embeddings, head, last norm


def test_a_kv_cache_holds_what_runs_at_once(sizes):
    """1.5B: 28 layers x 2 x 2 heads x 128 x 2 bytes a token; 65 blocks of 16 hold 1,024 tokens; an eighth more."""
    work = work_of(spec_of(rollout={"maxNumSeqs": 100}))
    assert work.longest == 1024
    parts = phases(sizes["1.5B"], work, H100)["rollout"]
    assert parts["KV cache"] == 28_672 * 65 * 16 * 100 * 9 / 8


def test_an_engine_that_computes_more_tokens_at_once_takes_more_for_activations(sizes):
    spec = spec_of(rollout={"engineArguments": {"max_num_batched_tokens": 65_536}})
    assert phases(sizes["1.5B"], work_of(spec), H100)["rollout"]["engine's activations"] == 2 * 8960 * 2 * 65_536


@pytest.mark.parametrize(("ranks", "prompts", "contexts"), [(1, 64, 512), (2, 64, 256), (1, 8, 100), (1, 96, None)])
def test_a_kv_cache_holds_the_contexts_of_an_engines_episodes(sizes, ranks, prompts, contexts):
    """As above, eight episodes a prompt. Those of 96 prompts need more than half of the engine: it takes its share."""
    data = {"train": ["rows.jsonl"], "maxResponseTokens": 512, "promptsPerStep": prompts}
    tools = {"builtinTools": [{"name": "calculator"}], "maxEpisodeTokens": 1024}
    spec = spec_of(ranks, data=data, environment=tools, rollout={"maxNumSeqs": 100, "samplesPerPrompt": 8})
    parts = phases(sizes["1.5B"], work_of(spec), H100)["rollout"]
    if contexts is not None:
        assert parts["KV cache"] == 28_672 * 65 * 16 * contexts * 9 / 8
    else:
        assert sum(parts[name] for name in parts if name.startswith(("engine", "KV"))) == int(0.5 * H100)


@pytest.mark.parametrize(
    ("gpus", "sequences", "each"), [(1, 256, 28_672 * 256), (8, 512, 14_336 * 512), (1, 512, None), (8, 1024, None)]
)
def test_an_engine_takes_the_kv_cache_that_is_planned(tmp_path, monkeypatch, sizes, gpus, sequences, each):
    """28,672 bytes a token of 1.5B; each of 8 GPUs holds one of its two heads. 16 GiB are more than half of 20."""
    size, spec = sizes["1.5B"], spec_of(gpus, rollout={"tensorParallelSize": gpus, "maxNumSeqs": sequences})
    parts = phases(size, work_of(spec), 40 * GIB)["rollout"]
    monkeypatch.setattr(start, "_share", lambda _: 20 * GIB)
    config(SHAPES["1.5B"]).save_pretrained(tmp_path)
    settings = EngineSettings(
        "vllm", str(tmp_path), 1024, "bfloat16", "cuda", max_num_seqs=sequences, tensor_parallel_size=gpus
    )
    taken = start._kv_cache_bytes(settings)
    assert taken == (each and each * 65 * 16 * 9 // 8)
    beside = parts["engine's weights"] + parts["engine's activations"]
    assert parts["KV cache"] == (taken or 20 * GIB - beside)


def test_layers_that_keep_other_states_take_all_that_the_share_leaves():
    work = work_of(spec_of(rollout={"maxNumSeqs": 1}))
    parts = phases(model_size(config_of("lfm2")), work, H100)["rollout"]
    assert sum(parts[name] for name in parts if name.startswith(("engine", "KV"))) == int(0.5 * H100)


@pytest.mark.parametrize("name", ["0.5B", "1.5B"])
def test_the_defaults_train_qwen_on_one_gpu_of_80_gb(sizes, name):
    """Without recomputation, and with 512 sequences at once."""
    spec = with_defaults(spec_of(), sizes[name], H100)
    assert (spec.actor.recompute, spec.rollout.max_num_seqs) == ("none", 512)
    found = plan(sizes[name], work_of(spec), H100)
    assert not found.too_much
    assert max(found.peaks.values()) < 0.9 * H100


@pytest.mark.parametrize(
    ("changed", "measures"),
    [
        ({}, False),
        ({"device": "cpu"}, False),
        ({"contexts": 1000}, False),
        ({"contexts": 1024}, True),
        ({"engines_per_gpu": 8}, True),
    ],
)
def test_an_engine_measures_its_gpu_if_the_kv_cache_is_not_known(tmp_path, monkeypatch, changed, measures):
    """512 sequences of 640 tokens fill 10 GiB at 1.5B: more than half of an eighth of 40 GiB, as 1024 of 40."""
    monkeypatch.setattr(start, "_share", lambda settings: 40 * GIB / settings.engines_per_gpu)
    config(SHAPES["1.5B"]).save_pretrained(tmp_path)
    plain = EngineSettings("vllm", str(tmp_path), 640, "bfloat16", "cuda", more_if_room=True)
    assert measures_memory(replace(plain, **changed)) == measures


def test_defaults_follow_the_memory(sizes):
    small = with_defaults(spec_of(), sizes["1.5B"], gpu_bytes("A100-40GB"))
    assert (small.actor.recompute, small.rollout.max_num_seqs) == ("layer", 256)
    written = spec_of(actor={"recompute": "offload"}, rollout={"maxNumSeqs": 64})
    assert with_defaults(written, sizes["0.5B"], H100) == written


def test_layers_that_cannot_be_computed_again_leave_no_choice():
    size = model_size(OpenAIGPTConfig(n_embd=64, n_layer=2, n_head=2, vocab_size=96))
    assert with_defaults(spec_of(), size, GIB).actor.recompute is None
    kept, again = (phases(size, work_of(spec_of(actor={"recompute": how})), H100) for how in ("none", "layer"))
    assert kept == again


@pytest.mark.parametrize(
    ("name", "gpu", "ranks", "blocks", "phase", "field"),
    [
        ("1.5B", "H100-80GB", 1, {"actor": {"recompute": "none", "tokensPerMicroBatch": 28_672}}, "update",
         "actor.tokensPerMicroBatch"),
        ("1.5B", "H100-80GB", 1, {"actor": {"recompute": "none", "tokensPerMicroBatch": 65_536}}, "update",
         "actor.recompute"),
        ("1.5B", "H100-80GB", 1, {"rollout": {"gpuMemoryUtilization": 0.9}}, "start", "rollout.gpuMemoryUtilization"),
        ("7B", "H100-80GB", 4, {"rollout": {"gpuMemoryUtilization": 0.15}}, "KV cache", "rollout.gpuMemoryUtilization"),
        ("7B", "H100-80GB", 4, {"rollout": {"enginesPerGpu": 7}}, "KV cache", "rollout.enginesPerGpu"),
        ("7B", "H100-80GB", 1, {}, "update", "actor.fsdp.offload"),
        ("7B", "8GiB", 1, {}, "update", "cluster.gpusPerNode"),
    ],
)  # fmt: skip
def test_a_phase_that_does_not_fit_names_a_value_that_does(sizes, name, gpu, ranks, blocks, phase, field):
    work, nbytes = work_of(spec_of(ranks, **blocks)), gpu_bytes(gpu)
    wrong = {each.phase: each.remedy for each in plan(sizes[name], work, nbytes).too_much}
    assert wrong[phase].field == f"spec.{field}"
    value = wrong[phase].advice.rpartition(" ")[2]
    changed = {
        "actor.tokensPerMicroBatch": lambda: replace(work, tokens=int(value), accumulates=True),
        "actor.recompute": lambda: replace(work, recompute=True),
        "rollout.gpuMemoryUtilization": lambda: replace(work, share=float(value)),
        "rollout.enginesPerGpu": lambda: replace(work, engines=int(value)),
        "actor.fsdp.offload": lambda: replace(work, host_weights=value == "all", host_optimizer=True),
    }
    if field in changed:
        assert phase not in {each.phase for each in plan(sizes[name], changed[field](), nbytes).too_much}


def write_job(folder, shape):
    config(shape).save_pretrained(folder / "model")
    job = {
        "apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "a"},
        "spec": {
            "model": {"path": "model"}, "data": {"train": ["synthetic://reverse-text?rows=8"]},
            "rewards": {"functions": [{"builtin": "exact_match"}]}, "training": {"steps": 1},
            "cluster": {"gpusPerNode": 1},
        },
    }  # fmt: skip
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    return folder / "job.yaml"


@pytest.mark.parametrize("changed", [{each.name: True} for each in fields(Work) if each.type is bool] + [{"share": 0}])
def test_every_part_has_a_row(sizes, changed):
    base = work_of(spec_of(), sizes["0.5B"], sizes["0.5B"])
    parts = phases(sizes["1.5B"], replace(base, **changed), H100)
    assert {name for phase in parts.values() for name in phase} <= set(_ROWS)


def test_the_command_prints_a_table_or_json(tmp_path):
    file = write_job(tmp_path, SHAPES["0.5B"])
    done = rljob("plan", file)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "fits")
    assert "0.49B parameters in 24 blocks; 1 x H100-80GB, 79.1 GiB" in done.stdout
    done = rljob("plan", file, "--json", "--gpu", "10GiB", "--set", "rollout.gpuMemoryUtilization=0.3")
    found = json.loads(done.stdout)
    assert done.returncode == 64
    assert found["gpuBytes"] == 10 * GIB
    assert found["phases"]["update"]["bytes"] == sum(found["phases"]["update"]["parts"].values())
    assert {"phase", "bytes", "field", "remedy"} == found["tooMuch"][0].keys()
    assert rljob("plan", file, "--gpu", "H1").returncode == 2


def test_an_engine_whose_share_does_not_fit_at_its_start_is_named(tmp_path):
    """The rollout itself fits, as the table says."""
    done = rljob("plan", write_job(tmp_path, SHAPES["0.5B"]), "--set", "rollout.gpuMemoryUtilization=0.95")
    assert done.returncode == 64
    assert "GiB for the start of an engine, which asks for its whole share" in done.stdout
    assert "for the rollout" not in done.stdout


def test_validate_warns_of_a_model_that_cannot_fit(tmp_path):
    done = rljob("validate", write_job(tmp_path, SHAPES["7B"]))
    assert done.returncode == 0
    assert "spec.actor.fsdp.offload: warning: an H100-80GB does not suffice, because the job needs " in done.stdout
    assert "warning" not in rljob("validate", write_job(tmp_path, SHAPES["0.5B"])).stdout
