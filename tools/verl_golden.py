"""Writes golden numbers of losses and advantages, computed by verl and Trinity: `python tools/verl_golden.py`.

    this process    makes an environment with uv, which also sees the project's packages, and runs this file in it
    that process    random inputs -> verl's and Trinity's own functions -> tests/rljob_trainer/golden/verl.json

test_losses_golden.py and test_advantage_golden.py compare ours with the file. Both packages are installed without their
dependencies: only the modules with the formulas are imported.
"""

import json
import os
import subprocess
import sys
import sysconfig
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[1] / "tests/rljob_trainer/golden/verl.json"
PACKAGES = ("verl==0.9.1", "trinity-rft==0.6.0", "tensordict==0.10.0", "pyvers", "omegaconf", "codetiming")
ANTLR = "antlr4-python3-runtime==4.9.3"  # omegaconf's
LENGTHS = [9, 4, 6, 1, 9, 3]
GROUPS = [0, 0, 0, 1, 1, 1]
LOSSES: dict[str, dict[str, Any]] = {
    "clip": {"verl": "vanilla", "clipRatio": 0.2, "clipRatioC": 1000.0},
    "dual_clip": {"verl": "vanilla", "clipRatio": 0.2, "clipRatioC": 1.5},
    "decoupled_clip": {"verl": "vanilla", "clipRatioLow": 0.1, "clipRatioHigh": 0.4, "clipRatioC": 1000.0},
    "gspo": {"verl": "gspo", "clipRatioLow": 0.05, "clipRatioHigh": 0.1},
    "geo_mean": {"verl": "geo_mean", "clipRatioLow": 0.2, "clipRatioHigh": 0.3},
    "cispo": {"verl": "cispo", "clipRatioLow": 0.2, "clipRatioHigh": 0.3},
    "sapo": {"verl": "sapo", "tauPos": 1.0, "tauNeg": 1.3},
    "gpg": {"verl": "gpg"},
    "dppo_tv": {"verl": "dppo_tv", "clipRatioLow": 0.05, "clipRatioHigh": 0.08, "clipRatioC": 1.2},
    "dppo_kl": {"verl": "dppo_kl", "clipRatioLow": 0.01, "clipRatioHigh": 0.02, "clipRatioC": 1.2},
    # all tokens within the bounds, so that verl's random choice has no choice
    "clip_cov": {"verl": "clip_cov", "clipRatioLow": 0.2, "clipRatioHigh": 0.3, "clipCovRatio": 1.0, "clipCovLb": 0.1,
                 "clipCovUb": 0.6},
    "kl_cov": {"verl": "kl_cov", "klCovRatio": 0.2, "ppoKlCoef": 0.7},
}  # fmt: skip
AGGREGATIONS = {
    "token_mean": "token-mean",
    "sequence_mean": "seq-mean-token-mean",
    "dr_grpo": "seq-mean-token-sum-norm",
}
_GEO = {"rolloutRs": ["seq_mean_k1"], "rolloutRsThreshold": ["0.9_1.1"]}
CORRECTIONS: dict[str, dict[str, Any]] = {
    "token": {"rolloutIs": "token", "rolloutIsThreshold": "1.2"},
    "token_normalized": {"rolloutIs": "token", "rolloutIsThreshold": "1.2", "rolloutIsBatchNormalize": True},
    "sequence": {"rolloutIs": "sequence", "rolloutIsThreshold": "1.5"},
    "sequence_normalized": {"rolloutIs": "sequence", "rolloutIsThreshold": "1.5", "rolloutIsBatchNormalize": True},
    "token_icepop": {"rolloutIs": "token", "rolloutIsThreshold": "0.8_1.3"},
    "sequence_icepop": {"rolloutIs": "sequence", "rolloutIsThreshold": "0.5_1.5", "rolloutIsBatchNormalize": True},
    "sequence_and_rejection": {"rolloutIs": "sequence", "rolloutRs": ["seq_sum_k1"], "rolloutRsThreshold": ["0.8_1.3"]},
    "several": {"rolloutRs": ["token_k1", "seq_max_k3"], "rolloutRsThreshold": ["1.4", "0.3"]},
    **{
        name: {"rolloutRs": [name], "rolloutRsThreshold": [bound]}
        for name, bound in {
            "token_k1": "0.8_1.3", "token_k2": "0.05", "token_k3": "0.05", "seq_sum_k1": "0.7_1.5",
            "seq_sum_k2": "0.3", "seq_sum_k3": "0.3", "seq_mean_k1": "0.9_1.1", "seq_mean_k2": "0.03",
            "seq_mean_k3": "0.03", "seq_max_k2": "0.15", "seq_max_k3": "0.1",
        }.items()
    },
}  # fmt: skip
WEIGHTED = ("dual_clip", "gspo", "geo_mean", "cispo", "gpg")
BYPASSES: dict[str, dict[str, Any]] = {
    "ppo_clip": {"lossType": "ppo_clip"} | _GEO,
    "token": {"lossType": "reinforce", "rolloutIs": "token", "rolloutIsThreshold": "1.2"},
    "sequence": {"lossType": "reinforce", "rolloutIs": "sequence", "rolloutIsThreshold": "1.5"} | _GEO,
}
ADVANTAGES = ("grpo", "rloo", "opo", "gpg", "grpo_passk", "reinforce_plus_plus", "reinforce_plus_plus_baseline")


def inputs() -> dict[str, Any]:
    """Random rows of at most 9 tokens: [n, T] each, and advantages with both signs."""
    import torch

    generator = torch.Generator().manual_seed(41)

    def normal(*shape: int) -> Any:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    shape = (len(LENGTHS), max(LENGTHS))
    old = -normal(*shape).abs() - 0.05
    new = (old + 0.4 * normal(*shape)).clamp(max=-0.01)
    rewards = torch.rand(shape[0], generator=generator, dtype=torch.float64)
    return {
        "lengths": LENGTHS,
        "groups": GROUPS,
        "old_log_probs": old.tolist(),
        "log_probs": new.tolist(),
        "reference_log_probs": (old + 0.3 * normal(*shape)).tolist(),
        "token_advantages": normal(*shape).tolist(),
        "sequence_advantages": normal(shape[0]).tolist(),
        "rewards": rewards.tolist(),
        "baselines": torch.rand(shape[0], generator=generator, dtype=torch.float64).tolist(),
        "engine_log_probs": (old + 0.25 * normal(*shape)).clamp(max=-0.01).tolist(),
    }


def compute() -> dict[str, Any]:
    """Everything; runs in the environment that has verl."""
    given = inputs()
    verl_losses = {name: verl_loss(given, settings) for name, settings in LOSSES.items()}
    return {
        "versions": {name: version(name) for name in ("verl", "trinity-rft", "torch")},
        "inputs": given,
        "losses": verl_losses | {"topr": trinity_topr(given)},
        "aggregations": {name: verl_aggregation(given, theirs) for name, theirs in AGGREGATIONS.items()},
        "kl": {name: verl_kl(given, name) for name in ("k1", "k2", "k3")},
        "advantages": verl_advantages(given),
        "corrections": {name: verl_correction(given, settings) for name, settings in CORRECTIONS.items()},
        "weighted_losses": {name: verl_weighted_loss(given, LOSSES[name]) for name in WEIGHTED},
        "bypasses": {name: verl_bypass(given, settings) for name, settings in BYPASSES.items()},
    }


def tensors(given: dict[str, Any]) -> tuple[Any, Any, Any, Any]:
    """log_probs with gradient, old_log_probs, advantages of each sequence, mask; [n, T] each."""
    import torch

    lengths = torch.tensor(given["lengths"])
    log_probs = torch.tensor(given["log_probs"], dtype=torch.float64).requires_grad_()
    mask = (torch.arange(log_probs.shape[1]) < lengths[:, None]).double()
    old = torch.tensor(given["old_log_probs"], dtype=torch.float64)
    advantages = torch.tensor(given["sequence_advantages"], dtype=torch.float64)[:, None].expand_as(old)
    return log_probs, old, advantages, mask


def flat(padded: Any, mask: Any) -> list[float]:
    return padded[mask.bool()].tolist()  # type: ignore[no-any-return]


def verl_loss(given: dict[str, Any], settings: dict[str, Any], weights: Any = None) -> dict[str, Any]:
    """Loss and gradient, aggregated as sequence_mean. weights: [n, T], of rollout correction."""
    from verl.trainer.ppo.core_algos import get_policy_loss_fn
    from verl.workers.config.actor import ActorConfig, PolicyLossConfig

    policy = PolicyLossConfig(
        loss_mode=settings["verl"],
        clip_cov_ratio=settings.get("clipCovRatio", 0.0002),
        clip_cov_lb=settings.get("clipCovLb", 1.0),
        clip_cov_ub=settings.get("clipCovUb", 5.0),
        kl_cov_ratio=settings.get("klCovRatio", 0.0002),
        ppo_kl_coef=settings.get("ppoKlCoef", 1.0),
    )
    clip = settings.get("clipRatio", 0.2)
    config = ActorConfig(
        strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, policy_loss=policy, clip_ratio=clip,
        clip_ratio_low=settings.get("clipRatioLow", clip), clip_ratio_high=settings.get("clipRatioHigh", clip),
        clip_ratio_c=settings.get("clipRatioC", 3.0), tau_pos=settings.get("tauPos", 1.0),
        tau_neg=settings.get("tauNeg", 1.05),
    )  # fmt: skip
    log_probs, old, advantages, mask = tensors(given)
    loss, _ = get_policy_loss_fn(settings["verl"])(
        old_log_prob=old, log_prob=log_probs, advantages=advantages, response_mask=mask,
        loss_agg_mode="seq-mean-token-mean", config=config, rollout_is_weights=weights,
    )  # fmt: skip
    loss.backward()
    ours = {name: value for name, value in settings.items() if name != "verl"}
    return {"settings": ours, "loss": loss.item(), "gradient": flat(log_probs.grad, mask)}


def trinity_topr(given: dict[str, Any]) -> dict[str, Any]:
    """Trinity weighs each token by its own ratio and TOPR's paper by the sequence's: equal for sequences of one token.

    So this one takes the first token of each sequence.
    """
    from trinity.algorithm.policy_loss_fn.topr_policy_loss import TOPRPolicyLossFn

    log_probs, old, advantages, mask = tensors(given)
    first = slice(None), slice(0, 1)
    topr = TOPRPolicyLossFn()
    loss, _ = topr(
        logprob=log_probs[first], old_logprob=old[first], action_mask=mask[first], advantages=advantages[first]
    )
    loss.backward()
    return {"settings": {}, "loss": loss.item(), "gradient": log_probs.grad[:, 0].tolist()}


def verl_aggregation(given: dict[str, Any], theirs: str) -> float:
    import torch
    from verl.trainer.ppo.core_algos import agg_loss

    *_, mask = tensors(given)
    values = torch.tensor(given["token_advantages"], dtype=torch.float64)
    return agg_loss(values, mask, theirs).item()  # type: ignore[no-any-return]


def verl_kl(given: dict[str, Any], estimator: str) -> list[float]:
    import torch
    from verl.trainer.ppo.core_algos import kl_penalty

    log_probs, *_, mask = tensors(given)
    reference = torch.tensor(given["reference_log_probs"], dtype=torch.float64)
    return flat(kl_penalty(log_probs.detach(), reference, estimator), mask)


def verl_advantages(given: dict[str, Any]) -> dict[str, list[float]]:
    """[sum(lengths)] each, of rewards at the last tokens."""
    import numpy as np
    import torch
    from verl.trainer.config import AlgoConfig
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn

    *_, mask = tensors(given)
    rewards = torch.zeros_like(mask)
    rewards[torch.arange(len(mask)), mask.sum(1).long() - 1] = torch.tensor(given["rewards"], dtype=torch.float64)
    index, config = np.array(given["groups"]), AlgoConfig(gamma=0.9)
    baselines = torch.tensor(given["baselines"], dtype=torch.float64)
    found = {}
    for name in ADVANTAGES:
        values, _ = get_adv_estimator_fn(name)(rewards.clone(), response_mask=mask, index=index, config=config)
        found[name] = flat(values, mask)
    values, _ = get_adv_estimator_fn("remax")(
        rewards.clone(), reward_baselines=baselines, response_mask=mask, config=config
    )
    return found | {"remax": flat(values, mask)}


def correction_arguments(settings: dict[str, Any]) -> dict[str, Any]:
    """Fields of rolloutCorrection as verl's function names them."""
    return {
        "rollout_is": settings.get("rolloutIs"),
        "rollout_is_threshold": settings.get("rolloutIsThreshold", "2.0"),
        "rollout_is_batch_normalize": settings.get("rolloutIsBatchNormalize", False),
        "rollout_rs": ",".join(settings.get("rolloutRs", ())) or None,
        "rollout_rs_threshold": ",".join(settings.get("rolloutRsThreshold", ())) or None,
    }


def engine_log_probs(given: dict[str, Any]) -> Any:
    import torch

    return torch.tensor(given["engine_log_probs"], dtype=torch.float64)


def verl_correction(given: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Weights and mask of each token, and metrics."""
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask

    _, old, _, mask = tensors(given)
    weights, kept, metrics = compute_rollout_correction_and_rejection_mask(
        old, engine_log_probs(given), mask, **correction_arguments(settings)
    )
    each = None if weights is None else flat(weights.batch["rollout_is_weights"], mask)
    return {"settings": settings, "weights": each, "kept": flat(kept, mask), "metrics": metrics}


def verl_weighted_loss(given: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """As verl_loss, with the weights of the correction `token`."""
    weights = given_weights(given)
    return verl_loss(given, settings, weights)


def given_weights(given: dict[str, Any]) -> Any:
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights

    _, old, _, mask = tensors(given)
    return compute_rollout_correction_weights(old - engine_log_probs(given), mask, "token", 1.2)[0]


def verl_bypass(given: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Loss and gradient of one minibatch, aggregated as sequence_mean; pi_old is the engine's."""
    from verl.trainer.ppo.core_algos import get_policy_loss_fn
    from verl.workers.config.actor import ActorConfig, PolicyLossConfig

    correction = correction_arguments(settings) | {"loss_type": settings["lossType"]}
    config = ActorConfig(
        strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1,
        policy_loss=PolicyLossConfig(loss_mode="bypass_mode", rollout_correction=correction), clip_ratio=0.2,
        clip_ratio_low=0.2, clip_ratio_high=0.2, clip_ratio_c=1.5,
    )  # fmt: skip
    log_probs, _, advantages, mask = tensors(given)
    loss, metrics = get_policy_loss_fn("bypass_mode")(
        old_log_prob=engine_log_probs(given), log_prob=log_probs, advantages=advantages, response_mask=mask,
        loss_agg_mode="seq-mean-token-mean", config=config,
    )  # fmt: skip
    loss.backward()
    found = {name: value for name, value in metrics.items() if name.startswith("rollout_corr/")}
    return {"settings": settings, "loss": loss.item(), "gradient": flat(log_probs.grad, mask), "metrics": found}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        environment = Path(folder, "environment")
        uv = [str(Path(sys.executable).with_name("uv"))]
        subprocess.run([*uv, "venv", "--quiet", "--python", sys.executable, environment], check=True)
        python = environment / "bin/python"
        site = next(environment.glob("lib/python*/site-packages"))
        (site / "project.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
        install = ["pip", "install", "--quiet", "--no-deps", "--python", str(python)]
        subprocess.run([*uv, *install, *PACKAGES, ANTLR], check=True)
        subprocess.run([python, __file__, "--inside"], check=True, env=os.environ | {"CUDA_VISIBLE_DEVICES": ""})


if __name__ == "__main__":
    if "--inside" in sys.argv:
        FILE.parent.mkdir(exist_ok=True)
        lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in compute().items())
        FILE.write_text(f"{{\n{lines}\n}}\n")
    else:
        main()
