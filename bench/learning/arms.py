"""What is trained. An arm is an example with some settings changed; it is run with one seed or several."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from rljob_api.v1alpha1.terms import PAIRED
from rljob_trainer.advantage import ADVANTAGES
from rljob_trainer.losses.policy import LOSSES

ROOT: Final = Path(__file__).parents[2]
SEEDS: Final = (0, 1, 2)
COMPARED_SEEDS: Final = tuple(range(6))
"""Of reverse-text, ours and TRL's: two runs of one seed differ by 0.01, so three could not tell such a difference."""

ON_A_GPU: Final = (
    "cluster.gpusPerNode=1",
    "model.dtype=float32",  # as on a CPU, but with products in TF32 (training.py)
    "rollout.maxNumSeqs=2048",
    "rollout.gpuMemoryUtilization=0.2",  # several runs share the GPU
    "actor.tokensPerMicroBatch=65536",
)

PRETRAINED_ON_A_GPU: Final = (
    "cluster.gpusPerNode=1",
    "rollout.engine=vllm",
    "rollout.maxNumSeqs=256",
    "rollout.gpuMemoryUtilization=0.05",
    "actor.tokensPerMicroBatch=4096",
)
"""In bfloat16, with ten times the parameters and four times the vocabulary."""

Role = Literal["main", "engine", "held", "control", "preset", "advantage", "loss", "trl"]

Trainer = Literal["rljob", "exported", "evaluated", "paired", "taught", "trl"]
"""exported: `rljob` from the exported model that the example has after its supervised steps, as TRL.

evaluated: as exported, of a job that reads no rewards: `rljob eval` validates its first and its last model.
paired: as evaluated, on pairs of the right response to a training prompt and a wrong one that the model samples.
taught: by the exported model that the example has after TEACHER's supervised steps.
"""


@dataclass(frozen=True, slots=True)
class Task:
    """An example and what it must reach: a reward on held-out prompts, or one so far above or so many times its start.

    A level must lie above the start too: where supervised steps alone reach it, it says nothing of RL.
    held: the coefficient of a KL penalty that holds the policy where rewards say nothing, and gives way to those that
    do; None for a task without such arms. held_with: what else is set there. Addition's steps are smaller there, and
    its warm-up is longer: after 10 steps of it Adam's estimates are of too few gradients, and shuffled rewards swung a
    validation by 0.19.
    on_a_gpu: overrides there.
    pretrained: what `rljob model fetch` calls the model in the folder `model` beside the example.
    folder: of examples/; the default is the name.
    """

    name: str
    goal: float
    held: float | None = None
    held_with: tuple[str, ...] = ()
    of: Literal["level", "gain", "factor"] = "level"
    on_a_gpu: tuple[str, ...] = ON_A_GPU
    pretrained: str | None = None
    folder: str | None = None

    @property
    def example(self) -> Path:
        return ROOT / "examples" / (self.folder or self.name) / "rljob.yaml"

    def reached(self, start: float, end: float) -> bool:
        return end > start and end >= self.level(start)

    def level(self, start: float) -> float:
        """The reward to reach from there."""
        return {"level": self.goal, "gain": start + self.goal, "factor": start * self.goal}[self.of]

    @property
    def goal_text(self) -> str:
        return {
            "level": f"at least {self.goal:g}, and over its start",
            "gain": f"+{self.goal:g} over its start",
            "factor": f"{self.goal:g} times its start",
        }[self.of]


UNCHANGED: Final = "learning rate 0"
"""The control that changes nothing."""

SHUFFLED: Final = "shuffled rewards"
"""The control whose rewards say nothing, at the example's own KL penalty."""


@dataclass(frozen=True, slots=True)
class Arm:
    """overrides: PATH=VALUE, as --set takes them."""

    task: Task
    name: str
    role: Role
    overrides: tuple[str, ...] = ()
    seeds: tuple[int, ...] = SEEDS
    trainer: Trainer = "rljob"


TASKS: Final = (
    Task("reverse-text", 0.9, held=0.2, held_with=("training.steps=400",)),
    Task(
        "addition",
        0.9,
        held=0.5,
        held_with=("actor.learningRate=0.00004", "actor.lrWarmupSteps=100", "training.steps=500"),
    ),
    Task("countdown", 0.3, held=0.2, of="gain"),
    Task("smollm2", 2.0, of="factor", on_a_gpu=PRETRAINED_ON_A_GPU, pretrained="smollm2-135m"),
    Task("calculator", 0.9, on_a_gpu=PRETRAINED_ON_A_GPU, pretrained="smollm2-135m", folder="calculator-tool"),
)
REVERSE_TEXT, ADDITION, COUNTDOWN, SMOLLM2, CALCULATOR = TASKS

CONTROL_BAND: Final = 0.1
CONTROL_SHARE: Final = 0.25
"""How far over its start, and how much of the way from there to 1, rewards that say nothing may bring a model; how far
below it, where it is held."""

SEVERAL_UPDATES: Final = "actor.miniBatchSize=32"
"""With one update a step no probability ratio ever leaves 1, and all losses are the same."""

DISTILLATION: Final = ("algorithm.preset=distillation", "algorithm.teacher.path=teacher")

_CRITIC: Final = ("critic.learningRate=0.0003", "critic.warmupSteps=10")

_NO_REWARDS: Final = (
    *("rewards=null", "data.validation=null", "training.validateEvery=0"),
    *("model.fromScratch=null", "sft=null", "model.path=base"),
)

PRESETS: Final = {
    "PPO": ("algorithm.preset=ppo", *_CRITIC),
    "VAPO": ("algorithm.preset=vapo", *_CRITIC),
    "GSPO": ("algorithm.preset=gspo", SEVERAL_UPDATES),
    "CISPO": ("algorithm.preset=cispo", SEVERAL_UPDATES),
    "DAPO": ("algorithm.preset=dapo", SEVERAL_UPDATES),
    "ReMax": ("algorithm.preset=remax",),
    "online DPO": ("algorithm.preset=online_dpo",),
    "SPPO": ("algorithm.preset=sppo", SEVERAL_UPDATES),
    "SPIN": (
        *("algorithm.preset=spin", "algorithm.kl.refreshEvery=50", "rollout.samplesPerPrompt=1"),
        *_NO_REWARDS,
    ),
    "DPO": ("algorithm.preset=dpo", "algorithm.dpoBeta=1", *_NO_REWARDS, "rollout=null"),
    "distillation": DISTILLATION,
    "distillation, top 8": (*DISTILLATION, "algorithm.teacher.topK=8"),
}
"""Each with all that its preset sets. Their own advantages and losses have no other arm."""

PRESETS_OF_SEVERAL_SEEDS: Final = ("PPO", "GSPO", "CISPO", "DAPO", "ReMax")

PRESET_TRAINERS: Final[dict[str, Trainer]] = {
    "SPIN": "evaluated",
    "DPO": "paired",
    "distillation": "taught",
    "distillation, top 8": "taught",
}
"""Those of PRESETS that need another model first; the run names it in place of base and teacher."""

IN_TRL: Final = ("GSPO", "CISPO")
"""Those of PRESETS that TRL's GRPOTrainer has too."""

TEACHER: Final = ("sft.steps=600",)
"""What makes the teacher of another model: supervised steps alone, more than seven times the example's."""

ADVANTAGES_SEEDS: Final = {
    name: SEEDS if name == "dr_grpo" else (0,)
    for name in ADVANTAGES
    if name not in {"grpo", "remax", "gae", "best_worst", "win_rate", "gigpo", "distillation"}
}
"""TRL has dr_grpo too, so that is compared with it: with one seed, no difference says anything."""

LORA: Final = ("model.lora.rank=32", "actor.learningRate=0.0001")
"""Ten times the learning rate of full fine-tuning, after Schulman et al. 2025,
https://thinkingmachines.ai/blog/lora."""

LORA_AFTER_SUPERVISED: Final = (
    "model.fromScratch=null",
    "sft=null",
    "model.path=base",
    "model.lora.rank=32",
    "actor.learningRate=0.001",
)
"""An adapter needs a model that exists: the run names the exported one in place of base."""

_SHUFFLED: Final = str(Path(__file__).parent / "shuffled.py")


def control_band(start: float) -> float:
    """How far any validation of such a control may lie above its first: from 0.96, a band of 0.1 could not be left."""
    return min(CONTROL_BAND, CONTROL_SHARE * (1 - start))


def shuffled(rewards: list[dict[str, object]]) -> str:
    """The override that gives each response the reward of another one; validation keeps its own."""
    return "rewards.functions=" + json.dumps(
        [
            {
                "name": reward["name"],
                "path": _SHUFFLED,
                "weight": reward.get("weight", 1.0),
                "arguments": {"builtin": reward["builtin"], "settings": reward.get("arguments", {})},
            }
            for reward in rewards
        ]
    )


def arms(rewards: dict[str, list[dict[str, object]]]) -> list[Arm]:
    """All arms, the tasks' own first. rewards: rewards.functions of each task."""
    made = [Arm(task, "grpo", "main", seeds=COMPARED_SEEDS if task is REVERSE_TEXT else SEEDS) for task in TASKS]
    made.append(Arm(REVERSE_TEXT, "vllm", "engine", ("rollout.engine=vllm",)))
    made.append(Arm(REVERSE_TEXT, "LoRA", "engine", LORA_AFTER_SUPERVISED, trainer="exported"))
    made.append(Arm(REVERSE_TEXT, "TRL", "trl", seeds=COMPARED_SEEDS, trainer="trl"))
    made.append(Arm(SMOLLM2, "LoRA", "engine", LORA))
    made.append(Arm(SMOLLM2, "TRL", "trl", trainer="trl"))
    for task in TASKS:
        made.append(Arm(task, UNCHANGED, "control", ("actor.learningRate=0",)))
        made.append(Arm(task, SHUFFLED, "control", (shuffled(rewards[task.name]),)))
    for task in (task for task in TASKS if task.held is not None):
        held = (f"algorithm.kl.coefficient={task.held:g}", *task.held_with)
        made.append(Arm(task, f"grpo, KL {task.held:g}", "held", held))
        made.append(Arm(task, f"{SHUFFLED}, KL {task.held:g}", "control", (*held, shuffled(rewards[task.name]))))
    made += [
        Arm(
            REVERSE_TEXT,
            name,
            "preset",
            overrides,
            trainer=PRESET_TRAINERS.get(name, "rljob"),
            seeds=SEEDS if name in PRESETS_OF_SEVERAL_SEEDS else (0,),
        )
        for name, overrides in PRESETS.items()
    ]
    made += [Arm(REVERSE_TEXT, f"TRL, {name}", "preset", PRESETS[name], (0,), "trl") for name in IN_TRL]
    made.append(Arm(COUNTDOWN, "PPO", "preset", PRESETS["PPO"]))
    made += [
        Arm(REVERSE_TEXT, f"advantage {name}", "advantage", (f"algorithm.advantage={name}",), seeds=seeds)
        for name, seeds in ADVANTAGES_SEEDS.items()
    ]
    made.append(Arm(REVERSE_TEXT, "TRL, dr_grpo", "advantage", ("algorithm.advantage=dr_grpo",), trainer="trl"))
    made += [
        Arm(REVERSE_TEXT, f"loss {name}", "loss", (f"algorithm.loss={name}", SEVERAL_UPDATES), seeds=(0,))
        for name in LOSSES
        if name not in {"gspo", "cispo", "sppo", *PAIRED}
    ]
    made.append(Arm(REVERSE_TEXT, "TRL, sapo", "loss", ("algorithm.loss=sapo", SEVERAL_UPDATES), (0,), "trl"))
    made.append(
        Arm(
            REVERSE_TEXT,
            "NLL of right responses",
            "loss",
            ("algorithm.positiveNllCoefficient=0.1", SEVERAL_UPDATES),
            (0,),
        )
    )
    return made
