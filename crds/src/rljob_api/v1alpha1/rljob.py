"""The RLJob: its spec as a whole, and the rules that hold across its blocks."""

from typing import Annotated, Literal

from pydantic import Field

from rljob_api.v1alpha1.actor import Actor
from rljob_api.v1alpha1.algorithm import Algorithm, or_own
from rljob_api.v1alpha1.base import ApiModel, Duration, ManagerName, Rule, list_map
from rljob_api.v1alpha1.cluster import Cluster, EnvVar, LocalObjectRef
from rljob_api.v1alpha1.critic import Critic
from rljob_api.v1alpha1.data import Data
from rljob_api.v1alpha1.environment import Environment
from rljob_api.v1alpha1.gang import Gang
from rljob_api.v1alpha1.model import Model
from rljob_api.v1alpha1.pods import (
    FOLDERS_PATTERN,
    JOB_VOLUMES,
    KUBERAY_VOLUME,
    SHARED_MEMORY,
    EnvFrom,
    Volume,
    VolumeMount,
    cel_list,
)
from rljob_api.v1alpha1.preflight import Preflight
from rljob_api.v1alpha1.presets import PRESETS
from rljob_api.v1alpha1.recovery import Recovery
from rljob_api.v1alpha1.rewards import Rewards
from rljob_api.v1alpha1.rollout import Rollout
from rljob_api.v1alpha1.sft import Sft
from rljob_api.v1alpha1.status import RLJobStatus
from rljob_api.v1alpha1.terms import OFFLINE, PAIRED, WITHOUT_GROUPS
from rljob_api.v1alpha1.training import Checkpoint, Training
from rljob_api.v1alpha1.transitions import TRANSITIONS, once_ended
from rljob_api.v1alpha1.unread import unread_rules

_RANKS = (
    "self.cluster.nodes * (has(self.cluster.ranksPerNode) ? self.cluster.ranksPerNode :"
    " self.cluster.gpusPerNode == 0 ? 1 : self.cluster.gpusPerNode)"
)
_LEAST_RANKS = _RANKS.replace("self.cluster.nodes", "self.cluster.minNodes")
_ADVANTAGE = or_own("advantage", owner="self.algorithm")
_DISTILS = f"{_ADVANTAGE} == 'distillation'"
_SPIN = "self.algorithm.preset == 'spin'"
_UNREWARDED = f"({_DISTILS} || {_SPIN})"
_REWARDED = "(has(self.environment) || self.rewards.functions.size() + self.rewards.models.size() > 0)"
_READ_REWARDS = {
    "data.validation": "self.data.validation.size() == 0",
    "data.measuredDifficulty": "!self.data.measuredDifficulty",
    "checkpoint.keepBest": "self.checkpoint.keepBest == 0",
    "algorithm.positiveNllCoefficient": (
        "!has(self.algorithm.positiveNllCoefficient) || double(self.algorithm.positiveNllCoefficient) == 0.0"
    ),
}
"""Fields that a job without rewards (distillation, spin) does not read: CEL that is true if unset."""
_SFT = f"self.algorithm.preset in {list(OFFLINE)}"
_PAIRED = f"{or_own('loss', owner='self.algorithm')} in {list(PAIRED)}"
_MINI_BATCH = "(has(self.actor.miniBatchSize) ? self.actor.miniBatchSize : self.data.promptsPerStep)"
_CRITIC_BATCH = "self.critic.miniBatchSize"
_PRESET_WARMUPS = "".join(
    f"self.algorithm.preset == '{name}' ? {row.critic_warmup_steps} : "
    for name, row in PRESETS.items()
    if row.critic_warmup_steps
)
_WARMUP = f"has(self.critic) && has(self.critic.warmupSteps) ? self.critic.warmupSteps : {_PRESET_WARMUPS}0"


class RLJobSpec(ApiModel):
    """What to train, on what, and how."""

    model: Model = Field(description="The policy to train.")
    data: Data = Field(description="Prompts for training and validation.")
    algorithm: Algorithm = Field(default_factory=Algorithm, description="How rewards become gradients.")
    sft: Sft | None = Field(None, description="Supervised fine-tuning before the first RL step.")
    rollout: Rollout = Field(default_factory=Rollout, description="Generation of responses.")
    actor: Actor = Field(default_factory=Actor, description="Optimisation of the policy.")
    critic: Critic | None = Field(
        None,
        description=(
            "The model of values that algorithm.advantage gae needs, and one of your own may read; without it, gae has"
            " one of its defaults."
        ),
    )
    environment: Environment | None = Field(
        None, description="What the policy plays in. The default is a single turn: it answers the prompt."
    )
    rewards: Rewards = Field(default_factory=Rewards, description="How responses are scored.")
    training: Training = Field(description="Length and reporting of the run.")
    checkpoint: Checkpoint = Field(default_factory=Checkpoint, description="Checkpoints on the run's volume.")
    cluster: Cluster = Field(default_factory=Cluster, description="Shape of the cluster.")
    gang: Gang = Field(default_factory=Gang, description="Whether the pods of the cluster start together.")
    env: Annotated[list[EnvVar], Field(max_length=128)] = Field(
        default_factory=list,
        description="Environment variables of the trainer's processes. Reward models have their own.",
        json_schema_extra=list_map("name"),
    )
    env_from: Annotated[list[EnvFrom], Field(max_length=32)] = Field(
        default_factory=list,
        description="ConfigMaps and Secrets whose keys become variables, as envFrom of a container.",
    )
    volumes: Annotated[list[Volume], Field(max_length=64)] = Field(
        default_factory=list,
        description="Volumes of head, workers and reward models, as in the spec of a pod.",
        json_schema_extra=list_map("name"),
    )
    volume_mounts: Annotated[list[VolumeMount], Field(max_length=64)] = Field(
        default_factory=list,
        description="Mounts in the containers of head, workers and reward models, as volumeMounts of a container;"
        " the name checkpoints refers to the job's own volume.",
        json_schema_extra=list_map("mountPath"),
    )
    image_pull_secrets: Annotated[list[LocalObjectRef], Field(max_length=16)] = Field(
        default_factory=list,
        description="Secrets for pulling the images.",
        json_schema_extra=list_map("name"),
    )
    preflight: Preflight = Field(default_factory=Preflight, description="What is measured before a model is loaded.")
    recovery: Recovery = Field(default_factory=Recovery, description="What happens after a failure.")
    suspend: bool = Field(
        False,
        description="true saves a checkpoint, stops the job and releases everything but the volume; false resumes it.",
    )
    active_deadline: Duration | None = Field(
        None,
        description="Time limit from the start of the first driver; a suspension resets it. Then the operator saves a"
        " checkpoint and fails the job.",
    )
    ttl_after_finished: Duration = Field(
        "0s",
        description="How long cluster and reward models stay after the job has ended, so that their logs can be read.",
    )
    managed_by: ManagerName | None = Field(
        None,
        description=(
            "Name of the controller that runs this job, with its domain, as in a Kubernetes Job. This operator"
            " ignores the job unless the name is rljob.dev/operator. With kueue.x-k8s.io/multikueue, and a queue, Kueue"
            " runs a copy of the job in another cluster."
        ),
    )

    rules = (
        Rule(
            f"{_SFT} || {_UNREWARDED} || {_REWARDED}",
            "an RL job needs a reward: set rewards.functions, for example [{name: exact, builtin: exact_match}],"
            " rewards.models, or an environment that returns one; or choose preset distillation or spin",
            "rewards.functions",
        ),
        *(
            Rule(
                f"!{_UNREWARDED} || {_REWARDED} || {unset}",
                f"{field} reads rewards, which this job has not: remove it, or set rewards.functions",
                field,
            )
            for field, unset in _READ_REWARDS.items()
        ),
        Rule(
            f"!({_SFT}) || !has(self.sft)",
            "presets sft and dpo have no RL steps for sft to precede: remove sft, or choose an RL preset",
            "sft",
        ),
        *unread_rules(_SFT),
        Rule(
            f"!({_SPIN}) || !{_REWARDED}",
            "preset spin compares with the responses of the rows and reads no rewards: remove rewards and environment,"
            " or choose another preset",
            "algorithm.preset",
        ),
        Rule(
            f"!({_SPIN}) || self.rollout.samplesPerPrompt == 1",
            "preset spin pairs one sample with the response of its row: set rollout.samplesPerPrompt to 1",
            "rollout.samplesPerPrompt",
        ),
        Rule(
            f"{_SFT} || {_SPIN} || {_ADVANTAGE} in {list(WITHOUT_GROUPS)} || self.rollout.samplesPerPrompt >= 2",
            "this advantage compares the samples of a prompt: set rollout.samplesPerPrompt to at least 2",
            "rollout.samplesPerPrompt",
        ),
        Rule(
            "has(self.environment) || self.rollout.validation.samplesPerPrompt == 1"
            " || double(self.rollout.validation.temperature) > 0.0",
            "samples of one prompt at temperature 0 are equal: set rollout.validation.temperature above 0, or"
            " rollout.validation.samplesPerPrompt to 1",
            "rollout.validation.temperature",
        ),
        Rule(
            "!has(self.algorithm.teacher) || !has(self.algorithm.teacher.server)"
            " || double(self.rollout.temperature) == 1.0",
            "a teacher's server answers log-probabilities at temperature 1: set rollout.temperature to 1, or give the"
            " teacher by algorithm.teacher.path",
            "rollout.temperature",
        ),
        Rule(
            "double(self.algorithm.dynamicSampling.oversample) == 0.0 || !self.rollout.deterministic",
            "which groups are finished first depends on time: remove algorithm.dynamicSampling.oversample, or set"
            " rollout.deterministic to false",
            "algorithm.dynamicSampling.oversample",
        ),
        Rule(
            "self.rollout.quantization == 'none' || self.model.dtype != 'float32'",
            "vLLM quantises models of 16 bits: set model.dtype to bfloat16, or remove rollout.quantization",
            "rollout.quantization",
        ),
        Rule(
            "self.actor.optimizer == 'adamw' || !has(self.model.lora)",
            "muon updates whole matrices, and an adapter's are factors: set actor.optimizer to adamw, or remove"
            " model.lora",
            "actor.optimizer",
        ),
        Rule(
            "!has(self.actor.emaDecay) || !has(self.model.lora)",
            "the average of an adapter is not supported yet: remove actor.emaDecay, or model.lora",
            "actor.emaDecay",
        ),
        Rule(
            "!self.data.measuredDifficulty || !has(self.data.difficulty)",
            "an epoch has one order: remove data.difficulty, or data.measuredDifficulty",
            "data.measuredDifficulty",
        ),
        Rule(
            f"has(self.environment) || {_ADVANTAGE} != 'gigpo' && !has(self.algorithm.stepwiseAdvantage)",
            "a single turn has no other turn to be compared with: set environment, or remove"
            " algorithm.stepwiseAdvantage and choose another advantage than gigpo",
            "algorithm",
        ),
        Rule(
            "!has(self.actor.miniBatchSize) || self.data.promptsPerStep % self.actor.miniBatchSize == 0",
            "actor.miniBatchSize must divide data.promptsPerStep: set it to a divisor, or remove it",
            "actor.miniBatchSize",
        ),
        Rule(
            f"!has(self.critic) || {_ADVANTAGE} in ['gae', 'custom']",
            "only algorithm.advantage gae, or one of your own, reads values: remove critic, or set algorithm.preset to"
            " ppo",
            "critic",
        ),
        Rule(
            f"!has(self.critic) || !has({_CRITIC_BATCH}) || self.data.promptsPerStep % {_CRITIC_BATCH} == 0 &&"
            f" ({_MINI_BATCH} % {_CRITIC_BATCH} == 0 || {_CRITIC_BATCH} % {_MINI_BATCH} == 0)",
            "critic.miniBatchSize must divide data.promptsPerStep, and be a divisor or a multiple of"
            " actor.miniBatchSize: change it",
            "critic.miniBatchSize",
        ),
        Rule(
            f"!has(self.critic) && {_ADVANTAGE} != 'gae' || !has(self.training.steps)"
            f" || ({_WARMUP}) < self.training.steps",
            "the policy would never learn: set critic.warmupSteps below training.steps",
            "critic.warmupSteps",
        ),
        Rule(
            "!has(self.algorithm.earlyStop.kl) && !has(self.algorithm.earlyStop.clipFraction) || self.actor.epochs > 1"
            " || has(self.actor.miniBatchSize) && self.actor.miniBatchSize < self.data.promptsPerStep",
            "a step makes one update, which earlyStop cannot end: raise actor.epochs, set actor.miniBatchSize below"
            " data.promptsPerStep, or remove algorithm.earlyStop",
            "algorithm.earlyStop",
        ),
        Rule(
            "self.actor.tokensPerMicroBatch >= self.data.maxPromptTokens + self.data.maxResponseTokens",
            "actor.tokensPerMicroBatch must be at least data.maxPromptTokens + data.maxResponseTokens, the longest"
            " sample: raise it",
            "actor.tokensPerMicroBatch",
        ),
        Rule(
            f"!({_PAIRED}) || self.actor.tokensPerMicroBatch >= 2 * (self.data.maxPromptTokens +"
            " self.data.maxResponseTokens) && (!has(self.environment) || !has(self.environment.maxEpisodeTokens)"
            " || self.actor.tokensPerMicroBatch >= 2 * self.environment.maxEpisodeTokens)",
            "loss dpo sees both responses of a pair in one pass: set actor.tokensPerMicroBatch to at least twice"
            " data.maxPromptTokens + data.maxResponseTokens, or environment.maxEpisodeTokens",
            "actor.tokensPerMicroBatch",
        ),
        Rule(
            "!has(self.environment) || !has(self.environment.toolParser) || self.rollout.engine == 'vllm'",
            "environment.toolParser names a parser of vLLM: set rollout.engine to vllm, or remove it",
            "environment.toolParser",
        ),
        Rule(
            "!has(self.environment) || !has(self.environment.maxEpisodeTokens)"
            " || self.environment.maxEpisodeTokens > self.data.maxPromptTokens"
            " && self.environment.maxEpisodeTokens <= self.actor.tokensPerMicroBatch",
            "environment.maxEpisodeTokens must be above data.maxPromptTokens and at most actor.tokensPerMicroBatch:"
            " change one of them",
            "environment.maxEpisodeTokens",
        ),
        Rule(
            f"({_RANKS}) % self.actor.fsdp.replicas == 0",
            "actor.fsdp.replicas must divide cluster.nodes x cluster.ranksPerNode, the number of ranks: lower it",
            "actor.fsdp.replicas",
        ),
        Rule(
            f"!has(self.cluster.minNodes) || ({_LEAST_RANKS}) % self.actor.fsdp.replicas == 0",
            "actor.fsdp.replicas must divide cluster.minNodes x cluster.ranksPerNode: raise cluster.minNodes",
            "cluster.minNodes",
        ),
        Rule(
            f"({_RANKS}) % self.rollout.tensorParallelSize == 0",
            "rollout.tensorParallelSize must divide cluster.nodes x cluster.ranksPerNode, the number of ranks: lower"
            " it",
            "rollout.tensorParallelSize",
        ),
        Rule(
            f"!has(self.cluster.minNodes) || ({_LEAST_RANKS}) % self.rollout.tensorParallelSize == 0",
            "rollout.tensorParallelSize must divide cluster.minNodes x cluster.ranksPerNode: raise cluster.minNodes",
            "cluster.minNodes",
        ),
        Rule(
            "self.cluster.gpusPerNode == 0 || self.cluster.gpusPerNode % self.rollout.tensorParallelSize == 0",
            "rollout.tensorParallelSize must divide cluster.gpusPerNode, because an engine runs on one node: lower it",
            "rollout.tensorParallelSize",
        ),
        Rule(
            "self.rollout.engine == 'vllm' || self.rollout.tensorParallelSize == 1",
            "engine hf uses one device: set rollout.tensorParallelSize to 1, or rollout.engine to vllm",
            "rollout.tensorParallelSize",
        ),
        Rule(
            f"{_SFT} ? self.data.promptsPerStep >= {_RANKS} :"
            f" {_MINI_BATCH} * self.rollout.samplesPerPrompt >= {_RANKS}",
            "each rank needs at least one sample per optimizer step: raise data.promptsPerStep or"
            " actor.miniBatchSize, or lower cluster.nodes",
            "data.promptsPerStep",
        ),
        Rule(
            f"!has(self.critic) || !has({_CRITIC_BATCH}) || {_CRITIC_BATCH} * self.rollout.samplesPerPrompt >="
            f" {_RANKS}",
            "each rank needs at least one sample per optimizer step: raise critic.miniBatchSize, or lower"
            " cluster.nodes",
            "critic.miniBatchSize",
        ),
        Rule(
            f"!has(self.sft) || self.sft.batchSize >= {_RANKS}",
            "each rank needs at least one row per supervised step: raise sft.batchSize, or lower cluster.nodes",
            "sft.batchSize",
        ),
        Rule(
            "!has(self.activeDeadline) || duration(self.activeDeadline) > duration('0s')",
            "activeDeadline must be above 0s: set it to 12h, for example, or remove it",
            "activeDeadline",
        ),
        Rule(
            "self.training.validateEvery == 0 || self.data.validation.size() > 0",
            "training.validateEvery needs validation data: set data.validation, or set training.validateEvery to 0",
            "training.validateEvery",
        ),
        Rule(
            "self.volumeMounts.all(m, m.name == 'checkpoints' || self.volumes.exists(v, v.name == m.name))",
            "volumeMounts names a volume that does not exist: add the volume to volumes, or correct the name in"
            " volumeMounts",
            "volumeMounts",
        ),
        Rule(
            f"self.volumes.all(v, !(v.name in {cel_list((*JOB_VOLUMES, SHARED_MEMORY, KUBERAY_VOLUME))}))",
            "the volume names checkpoints, job, auth, shared-memory and shared-mem are reserved for the operator and"
            " KubeRay: choose another name; spec.checkpoint.volume configures the checkpoint volume",
            "volumes",
        ),
        Rule(
            f"self.volumeMounts.all(m, !m.mountPath.matches(r'{FOLDERS_PATTERN}'))",
            "the paths /checkpoints, /etc/rljob/job and /dev/shm are reserved for the operator's volumes: choose"
            " another path",
            "volumeMounts",
        ),
        *TRANSITIONS,
    )

    @property
    def longest_sample(self) -> int:
        """Most tokens of one trajectory."""
        plain = self.data.max_prompt_tokens + self.data.max_response_tokens
        return max(plain, (self.environment and self.environment.max_episode_tokens) or 0)


class ObjectMeta(ApiModel):
    """The metadata that RLJob reads; Kubernetes defines the rest."""

    model_config = ApiModel.model_config | {"extra": "allow"}
    name: str = Field(min_length=1, max_length=253, description="Name of the job.")
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)


class RLJob(ApiModel):
    """Reinforcement-learning post-training of a language model."""

    api_version: Literal["rljob.dev/v1alpha1"] = Field(description="Always rljob.dev/v1alpha1.")
    kind: Literal["RLJob"] = Field(description="Always RLJob.")
    metadata: ObjectMeta = Field(description="Name and labels.")
    spec: RLJobSpec = Field(description="What to train, on what, and how.")
    status: RLJobStatus | None = Field(None, description="Observed state, which the operator writes.")

    rules = (
        Rule(
            "self.metadata.name.size() <= 40 && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
            "metadata.name must be lowercase letters, digits and '-', begin with a letter and have at most 40"
            " characters, because it is part of other objects' names: change it",
            "metadata.name",
        ),
        once_ended(RLJobSpec),
    )
