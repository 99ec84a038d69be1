"""On-policy distillation: how much likelier the teacher finds each token than the policy that sampled it."""

from rljob_trainer.advantage.batch import AdvantageBatch
from rljob_trainer.types import Floats


def distillation(batch: AdvantageBatch) -> Floats:
    """A_t = c (log pi_teacher(y_t) - log pi(y_t)), with c = teacher.coefficient, of each sampled token y_t.

    The policy gradient with it descends the reverse KL(pi || pi_teacher) of each next token, from one sample: minus A_t
    / c is its k1 estimate. As in the paper, a token does not count what its choice changes for later tokens (a discount
    of 0). Rewards are only reported. With any other advantage, the teacher's signal is added to it.

    With teacher.topK, A_t is 0 and c D_t is added to the token's loss. D_t is the same divergence over the K tokens S
    that the teacher finds likeliest, and the rest of the vocabulary as one: the sum over S of pi log(pi / pi_teacher),
    plus that of 1 - pi(S) and 1 - pi_teacher(S). Its gradient is exact, and has no noise of one sample.

    Use it with algorithm.teacher, a larger model with the policy's tokenizer, on the ranks (path) or at a server of
    vLLM (server); no reward is needed.

    Lu et al. 2025, On-Policy Distillation: https://thinkingmachines.ai/blog/on-policy-distillation/; Gu et al. 2023,
    MiniLLM, the same divergence over whole responses: https://arxiv.org/abs/2306.08543
    """
    if batch.teacher is None:
        raise ValueError("distillation needs the log-probabilities of a teacher")
    return batch.teacher
