"""Log-probabilities at each request's temperature and before top-k and top-p, as Completion promises them.

vLLM reports them before temperature (raw) or after top-k and top-p (processed). The latter are the ones wanted if no
request of a batch truncates. If one does, the sampler is made to report what it would without the truncation.
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


def _temperatures(metadata: Any) -> Tensor | None:
    """[rows]; None if no row is truncated."""
    truncated = metadata.top_k is not None or metadata.top_p is not None
    return metadata.temperature if truncated else None


def _slot_temperatures(sampler: Any, slots: Tensor) -> Tensor | None:
    """[rows]; None if no slot is truncated, one that is free now included."""
    states = sampler.sampling_states
    truncated = (states.top_p.np != 1).any() or (states.top_k.np != states.vocab_size).any()
    return states.temperature.gpu[slots] if truncated else None
