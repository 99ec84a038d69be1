"""The loss from log-probabilities and advantages, per token and flat.

    log_probs, entropy = score_tokens(...)                    output_head/: from hidden states, without keeping logits
    weights = token_weights(...)                              aggregation: the weight of each token in the minibatch
    terms   = LOSSES[name](PolicyBatch(...), settings)         policy/: one loss per file
    penalty = kl_estimate(...)                                kl: if it acts in the loss
    loss    = (weights * (terms.per_token + coefficient * penalty - entropy_coefficient * entropy)).sum()

The mask (rank/masking.py) is decided before `weights`, which divide by the counts of the whole minibatch. So the sum of
`loss` over all ranks and micro-batches is the loss of the minibatch, however it is split.

This module imports no torch, because the driver imports `losses.kl_controller`.
"""
