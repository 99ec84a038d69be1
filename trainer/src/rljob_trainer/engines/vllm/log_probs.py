"""Log-probabilities at each request's temperature and before top-k and top-p, as Completion promises them.

vLLM reports them before temperature (raw) or after top-k and top-p (processed). The latter are the ones wanted if no
request of a batch truncates. If one does, the sampler is made to report what it would without the truncation.

For each token vLLM makes three arrays, a tuple of them and six entries of lists: ranks, texts, the likeliest tokens. Of
these one number is wanted, and small models wait for the host: `report_numbers` and `find_no_ranks` leave out the rest.
"""

from typing import Any

from torch import Tensor

LOGPROBS_MODE = "processed_logprobs"

_GREEDY = 1e-5
"""vLLM chooses greedily below this temperature; the log-probabilities are those at temperature 1 then."""


def report_before_truncation(sampler: Any) -> None:
    """Change a sampler of vLLM, of its first or its second model runner.

    Both have a method `sample` that returns the tokens and, in LOGPROBS_MODE, log-probabilities (first) or logits of
    the same softmax (second) that the log-probabilities of these tokens are read from.
    """
    sample = sampler.sample
    second = hasattr(sampler, "sampling_states")

    def sample_and_report(logits: Tensor, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """batch: sampling metadata of the rows (first) or each row's slot in the sampling states (second)."""
        temperature = _slot_temperatures(sampler, batch) if second else _temperatures(batch)
        if temperature is None:
            return sample(logits, batch, *args, **kwargs)
        scaled = logits.float() / temperature.where(temperature >= _GREEDY, 1.0)[:, None]  # vLLM works in place
        tokens, _ = sample(logits, batch, *args, **kwargs)
        return tokens, scaled if second else scaled.log_softmax(dim=-1)

    sampler.sample = sample_and_report


def find_no_ranks(sampler: Any) -> None:
    """Let a sampler of vLLM's first model runner look up the sampled tokens alone.

    Their ranks cost a pass over the vocabulary for each row and step. The second model runner has one kernel for them.
    """
    gather = getattr(sampler, "gather_logprobs", None)
    if gather is None:
        return
    from vllm.v1.outputs import LogprobsTensors

    def sampled_alone(logprobs: Tensor, num_logprobs: int, token_ids: Tensor) -> Any:
        if num_logprobs:
            return gather(logprobs, num_logprobs, token_ids=token_ids)
        ids = token_ids.unsqueeze(-1)
        narrow = ids.int()
        return LogprobsTensors(narrow, logprobs.gather(-1, ids), narrow[:, 0])  # nothing reads these ranks

    sampler.gather_logprobs = sampled_alone


class SampledLogProbs:
    """What vLLM keeps of one request's log-probabilities, in the place of its LogprobsProcessor.

    logprobs: of each sampled token so far, in nats.
    """

    cumulative_logprob = None
    prompt_logprobs = None
    prompt_token_id_logprobs = None

    def __init__(self) -> None:
        self.logprobs: list[float] = []

    @classmethod
    def from_new_request(cls, tokenizer: Any, request: Any) -> "SampledLogProbs":  # noqa: ARG003  as vLLM calls it
        return cls()

    def update_from_output(self, output: Any) -> None:
        self.logprobs += output.new_logprobs or ()

    def pop_prompt_logprobs(self) -> None:
        return None

    def pop_prompt_token_id_logprobs(self) -> None:
        return None


def report_numbers() -> None:
    """Let every engine of this process report one number a token. Call it before the first engine is built."""
    from vllm.v1.engine import output_processor
    from vllm.v1.outputs import LogprobsLists

    output_processor.LogprobsProcessor = SampledLogProbs
    LogprobsLists.slice_request = _sampled


def _sampled(lists: Any, row: int, tokens: int) -> list[float]:
    """Log-probabilities of the tokens that one request sampled in a step, one but for speculative decoding.

    lists: vLLM's LogprobsLists, of all requests of the step. row: of the request.
    """
    if lists.cu_num_generated_tokens is not None:
        row = lists.cu_num_generated_tokens[row]
    sampled = lists.logprobs
    return [sampled.item(row, 0)] if tokens == 1 else sampled[row : row + tokens, 0].tolist()


def _temperatures(metadata: Any) -> Tensor | None:
    """[rows]; None if no row is truncated."""
    truncated = metadata.top_k is not None or metadata.top_p is not None
    return metadata.temperature if truncated else None


def _slot_temperatures(sampler: Any, slots: Tensor) -> Tensor | None:
    """[rows]; None if no slot is truncated, one that is free now included."""
    states = sampler.sampling_states
    truncated = (states.top_p.np != 1).any() or (states.top_k.np != states.vocab_size).any()
    return states.temperature.gpu[slots] if truncated else None
