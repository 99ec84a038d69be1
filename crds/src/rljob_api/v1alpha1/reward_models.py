"""`spec.rewards.models`: models that say what a good response is, each served by vLLM beside the job."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from rljob_api.v1alpha1.base import NAME_PATTERN, ApiModel, Count, Duration, Path, Quantity, Rule, Text, sized
from rljob_api.v1alpha1.pods import PodTemplate

LONGEST_NAME = 19
"""A Service's name has 63 characters, and the job's name (40) and `-rm-` are in it."""

ModelName = Annotated[str, StringConstraints(pattern=NAME_PATTERN, min_length=1, max_length=LONGEST_NAME)]


class RewardModel(ApiModel):
    """One reward model: a vLLM server that is asked for the score of each response.

    classifier: a model with one label, such as LlamaForSequenceClassification. Its score is the label's logit, no
    sigmoid applied, of the row's conversation with the response as the assistant's last message, in the reward model's
    own chat template; or of promptTemplate as it is, where that is set.
    generative: a chat model that judges. It gets promptTemplate as the user's message, answers at temperature 0, and
    its score is the last match of scorePattern in the answer.
    An answer without a finite score is the response's failure: onError decides. A server that does not answer is
    waited for, and never becomes a reward.
    """

    name: ModelName = Field(description="Name in logs and metrics, reward/NAME, and of its objects in a cluster.")
    path: Path = Field(
        description=(
            "A model on the Hugging Face hub (org/name) or a folder; a relative folder starts at the RLJob's file, and"
            " in a cluster a folder is one of spec.volumeMounts."
        )
    )
    kind: Literal["classifier", "generative"] = Field(description="How it scores.")
    weight: Annotated[float, Field(ge=-1000, le=1000)] = Field(1.0, description="Factor of this reward in the sum.")
    prompt_template: Annotated[str, StringConstraints(min_length=1, max_length=16_384)] | None = Field(
        None,
        description=(
            "Text to send, in which {prompt}, {response} and {ground_truth} are replaced: the messages of the row's"
            " prompt, the response, and the row's ground truth (as JSON, where it is no text). Other braces stay."
        ),
    )
    score_pattern: Annotated[str, StringConstraints(min_length=1, max_length=1024)] | None = Field(
        None,
        description=(
            "Where the score stands in a generative model's answer: a regular expression of Python with one group, the"
            " number. The last match counts."
        ),
    )
    max_tokens: Count | None = Field(
        None, description="Longest answer of a generative model, in tokens; the default is 512."
    )
    timeout: Duration = Field("2m", description="Longest that one request may take before it is sent again.")
    lost_after: Duration = Field(
        "10m",
        description=(
            "How long to send a response again and again to a server that fails or does not answer; then the attempt"
            " ends as an infrastructure failure."
        ),
    )
    replicas: Annotated[int, Field(ge=1, le=256)] = Field(
        1, description="Servers of this model in a cluster; `rljob run` starts one."
    )
    gpus_per_replica: Annotated[int, Field(ge=0, le=16)] = Field(
        1, description="GPUs of each server, over which vLLM splits the model; 0 serves on CPUs."
    )
    arguments: Annotated[list[Text], Field(max_length=64)] = Field(
        default_factory=list,
        description="Further arguments of `vllm serve`, such as --max-model-len, 8192, --trust-remote-code.",
    )
    image: Text | None = Field(
        None, description="Image with vLLM in which the server runs; the default is that of the job's other pods."
    )
    cpu: Quantity = Field("4", description="CPUs of a server, as request.")
    memory: Quantity = Field("32Gi", description="Memory of a server, as request and limit.")
    template: PodTemplate = Field(
        default_factory=PodTemplate, description="A pod template that is merged into the pod's; its container is vllm."
    )

    rules = (
        sized("memory"),
        Rule(
            "!(self.name in ['mean', 'std', 'min', 'max'])",
            "reward/mean, std, min and max are metrics of the sum: choose another name for the reward model",
            "name",
        ),
        Rule(
            "!('-' + self.name).endsWith('-head-svc')",
            "KubeRay gives the Service of a Ray cluster's head a name that ends in -head-svc, perhaps another job's"
            " cluster: choose another name for the reward model",
            "name",
        ),
        Rule(
            "self.kind != 'generative' || (has(self.promptTemplate) && has(self.scorePattern))",
            "a generative reward model needs promptTemplate, what it is asked, and scorePattern, where its answer has"
            " the score",
            "kind",
        ),
        Rule(
            "self.kind != 'classifier' || !(has(self.scorePattern) || has(self.maxTokens))",
            "a classifier answers with a number: remove scorePattern and maxTokens, or set kind to generative",
            "kind",
        ),
        Rule(
            "!has(self.promptTemplate) || self.promptTemplate.contains('{response}')",
            "promptTemplate must contain {response}, or all responses would score alike",
            "promptTemplate",
        ),
        Rule(
            "duration(self.timeout) > duration('0s') && duration(self.timeout) <= duration(self.lostAfter)",
            "timeout of a reward model must be above 0s and not exceed its lostAfter: set it to 2m, say",
            "timeout",
        ),
    )
