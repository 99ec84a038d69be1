"""`spec.algorithm.teacher`: the model that on-policy distillation learns from."""

from typing import Annotated, Final

from pydantic import Field, StringConstraints

from rljob_api.v1alpha1.base import URL_PATTERN, ApiModel, Duration, Path, Rule, Text
from rljob_api.v1alpha1.cluster import SecretKeyRef

TEACHER_KEY: Final = "RLJOB_TEACHER_KEY"
"""Environment variable of the trainer's processes: the API key of the teacher's server."""


class TeacherServer(ApiModel):
    """A server that runs already and answers the log-probabilities of a prompt's tokens, as vLLM does.

    The rollout host asks it about each finished group while others are generated. If it does not answer, the request is
    sent again until lostAfter; a missing answer is never a signal.
    """

    url: Annotated[str, StringConstraints(pattern=URL_PATTERN, min_length=8, max_length=1024)] = Field(
        description="Its address, without /v1 at the end. At /v1/completions it answers prompt_logprobs, as vLLM does."
    )
    model: Text = Field(description="Name of the model at the server. It must have the policy's tokenizer.")
    key: SecretKeyRef | None = Field(
        None,
        description=(
            "The server's API key, in a Secret of the job's namespace. `rljob run` reads it from the environment"
            f" variable {TEACHER_KEY} instead."
        ),
    )
    concurrency: Annotated[int, Field(ge=1, le=65_536)] = Field(
        64, description="Requests that the job has at the server at once, at most; each is one sample."
    )
    timeout: Duration = Field("2m", description="Time limit of one request; then it is sent again.")
    lost_after: Duration = Field(
        "10m",
        description=(
            "Time limit of all requests for one sample while the server fails or does not answer; then the attempt ends"
            " as an infrastructure failure."
        ),
    )

    rules = (
        Rule(
            "duration(self.timeout) > duration('0s') && duration(self.timeout) <= duration(self.lostAfter)",
            "timeout of the teacher's server must be above 0s and at most its lostAfter: set it to 2m, for example",
            "timeout",
        ),
    )


class Teacher(ApiModel):
    """A frozen model, whose probability of each sampled token is compared with the policy's.

    With path it is a model of the ranks: what `spec.actor` says of sharding holds for it too, and checkpoints do not
    have it. With server it is served elsewhere.
    """

    path: Path | None = Field(
        None,
        description=(
            "A model on the Hugging Face hub, or a folder, with the policy's tokenizer: every token of the policy has"
            " the same id."
        ),
    )
    revision: Annotated[str, StringConstraints(min_length=1, max_length=128)] | None = Field(
        None, description="Branch, tag or commit of a hub model."
    )
    server: TeacherServer | None = Field(None, description="A server of the teacher, in place of path.")
    coefficient: Annotated[float, Field(gt=0, le=1000)] = Field(
        1.0,
        description=(
            "Weight of the teacher's signal, log pi_teacher - log pi of each sampled token, which is added to the"
            " token's advantage (slime's opd_kl_coef); with topK, of the divergence in the loss."
        ),
    )
    top_k: Annotated[int, Field(ge=0, le=1000)] = Field(
        0,
        description=(
            "Above 0, a term of the loss is the reverse KL over so many tokens that the teacher finds likeliest, and"
            " the rest of the vocabulary as one (verl's topk), and advantages have no part of it. 0: the sampled token"
            " alone. A server answers vLLM's --max-logprobs at most, 20 unless it is started with more."
        ),
    )

    rules = (
        Rule(
            "has(self.path) != has(self.server)",
            "a teacher is a model of the ranks or at a server: set one of teacher.path and teacher.server",
            "path",
        ),
        Rule(
            "!has(self.revision) || has(self.path)",
            "revision is of a hub model, and the server has its own: remove teacher.revision, or set teacher.path",
            "revision",
        ),
    )
