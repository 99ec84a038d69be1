"""A tokenised prompt with its response. Light: the driver imports it."""

from dataclasses import dataclass

from rljob_trainer.old_types import Ids


@dataclass(frozen=True, slots=True)
class TokenSequence:
    """A prompt and its response. token_ids: [P + R]; prompt_tokens: P >= 1; what is behind the prompt is a target."""

    token_ids: Ids
    prompt_tokens: int

    @property
    def response_tokens(self) -> int:
        return len(self.token_ids) - self.prompt_tokens
