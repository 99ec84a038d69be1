"""`spec.rewards.models`: models that score responses, each served by vLLM beside the job, or by a server elsewhere."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from rljob_api.v1alpha1.base import (
    NAME_PATTERN,
    URL_PATTERN,
    ApiModel,
    Count,
    Duration,
    Path,
    Quantity,
    Rule,
    Text,
    list_map,
    sized,
)
from rljob_api.v1alpha1.cluster import EnvVar, SecretKeyRef
from rljob_api.v1alpha1.pods import PodTemplate

LONGEST_NAME = 19
"""A Service's name has at most 63 characters; the job's name takes 40 of them and `-rm-` takes 4."""

ModelName = Annotated[str, StringConstraints(pattern=NAME_PATTERN, min_length=1, max_length=LONGEST_NAME)]


class RewardModel(ApiModel):
    """One reward model: a vLLM server that scores each response.

    classifier: a model with one label, such as LlamaForSequenceClassification. The score is the label's logit, without
    a sigmoid. The input is the row's conversation with the response as the assistant's last message, in the reward
    model's own chat template, or the text of promptTemplate if that is set.
    generative: a chat model that judges. It gets promptTemplate as the user's message and answers at temperature 0. The
    score is the last match of scorePattern in the answer.
    An answer without a finite score counts as an error of that response (onError). If a server does not answer, the
    trainer sends the request again until lostAfter; a missing answer never becomes a reward.
    """

    name: ModelName = Field(
        description="Name in logs, in metrics (reward/NAME) and in the names of its objects in a cluster."
    )
    path: Path = Field(
        description=(
            "A model on the Hugging Face hub (org/name), or a folder. `rljob run` reads a relative folder from the"
            " folder of the RLJob's file; in a cluster the folder must be in one of spec.volumeMounts. With url, the"
            " name of the model at that server."
        )
    )
    url: Annotated[str, StringConstraints(pattern=URL_PATTERN, min_length=8, max_length=1024)] | None = Field(
        None,
        description=(
            "A server that runs already, with vLLM's or OpenAI's API; without /v1 at the end. The job then starts no"
            " server for this model."
        ),
    )
    key: SecretKeyRef | None = Field(
        None,
        description=(
            "The server's API key, in a Secret of the job's namespace. `rljob run` reads it from the environment"
            " variable RLJOB_REWARD_KEY_NAME instead; NAME is the model's name in capitals with _ for -. A server that"
            " the job starts gets a key of the job's own."
        ),
    )
    rate_limit: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        None, description="Requests a minute that the job sends at most, retries included; the default is no limit."
    )
    kind: Literal["classifier", "generative"] = Field(description="How the model scores.")
    weight: Annotated[float, Field(ge=-1000, le=1000)] = Field(1.0, description="Factor of this reward in the sum.")
    prompt_template: Annotated[str, StringConstraints(min_length=1, max_length=16_384)] | None = Field(
        None,
        description=(
            "Text to send. {prompt} stands for the messages of the row's prompt, {response} for the response and"
            " {ground_truth} for the row's ground truth (JSON unless it is text). Other braces stay as they are."
        ),
    )
    score_pattern: Annotated[str, StringConstraints(min_length=1, max_length=1024)] | None = Field(
        None,
        description=(
            "Regular expression of Python that finds the score in a generative model's answer; its one group is the"
            " number. The last match counts."
        ),
    )
    max_tokens: Count | None = Field(
        None, description="Longest answer of a generative model, in tokens; the default is 512."
    )
    timeout: Duration = Field("2m", description="Time limit of one request; then it is sent again.")
    lost_after: Duration = Field(
        "10m",
        description=(
            "Time limit of all requests for one response while the server fails or does not answer; then the attempt"
            " ends as an infrastructure failure."
        ),
    )
    replicas: Annotated[int, Field(ge=1, le=256)] = Field(
        1, description="Servers of this model in a cluster; `rljob run` starts one."
    )
    gpus_per_replica: Annotated[int, Field(ge=0, le=16)] = Field(
        1, description="GPUs of each server; vLLM splits the model over them. 0 serves on CPUs."
    )
    arguments: Annotated[list[Text], Field(max_length=64)] = Field(
        default_factory=list,
        description="Further arguments of `vllm serve`, such as --max-model-len, 8192, --trust-remote-code.",
    )
    env: Annotated[list[EnvVar], Field(max_length=64)] = Field(
        default_factory=list,
        description=(
            "Environment variables of the server, such as HF_TOKEN for a model of the hub that needs it. The server"
            " sees none of spec.env and spec.envFrom."
        ),
        json_schema_extra=list_map("name"),
    )
    image: Text | None = Field(
        None, description="Image with vLLM for the server; the default is the image of the job's other pods."
    )
    cpu: Quantity = Field("4", description="CPU request of a server.")
    memory: Quantity = Field("32Gi", description="Memory request and limit of a server.")
    template: PodTemplate = Field(
        default_factory=PodTemplate,
        description="Pod template that the operator merges into the server's; its container is vllm.",
    )

    rules = (
        sized("memory"),
        Rule(
            "!has(self.key) || has(self.url)",
            "a server that the job starts has no key: remove key, or set url to a server that runs already",
            "key",
        ),
        Rule(
            "!self.env.exists(e, e.name == 'VLLM_API_KEY')",
            "the job gives the servers that it starts a key of its own: remove VLLM_API_KEY from env",
            "env",
        ),
        Rule(
            "!self.arguments.exists(a, a.startsWith('--api-key') || a.startsWith('--api_key'))",
            "the job gives the servers that it starts a key of its own: remove --api-key from arguments",
            "arguments",
        ),
        Rule(
            "!(self.name in ['mean', 'std', 'min', 'max'])",
            "mean, std, min and max are reserved for metrics of the sum: choose another name for the reward model",
            "name",
        ),
        Rule(
            "!('-' + self.name).endsWith('-head-svc')",
            "a name that ends in -head-svc can collide with the head Service of a RayCluster: choose another name for"
            " the reward model",
            "name",
        ),
        Rule(
            "!self.name.matches('(^|-)rm-')",
            "a name that begins with rm- or contains -rm- can collide with a reward model of another job, whose objects"
            " are named JOB-rm-NAME: choose another name for the reward model",
            "name",
        ),
        Rule(
            "self.kind != 'generative' || (has(self.promptTemplate) && has(self.scorePattern))",
            "a generative reward model needs promptTemplate, the text to send, and scorePattern, which finds the"
            " score in the answer: set both",
            "kind",
        ),
        Rule(
            "self.kind != 'classifier' || !(has(self.scorePattern) || has(self.maxTokens))",
            "a classifier returns a number, not text: remove scorePattern and maxTokens, or set kind to generative",
            "kind",
        ),
        Rule(
            "!has(self.promptTemplate) || self.promptTemplate.contains('{response}')",
            "promptTemplate must contain {response}, or all responses get the same score: add it",
            "promptTemplate",
        ),
        Rule(
            "duration(self.timeout) > duration('0s') && duration(self.timeout) <= duration(self.lostAfter)",
            "timeout of a reward model must be above 0s and at most its lostAfter: set it to 2m, for example",
            "timeout",
        ),
    )
