"""From log-probabilities and advantages to one number to minimise, all per token and flat.

    weights = token_weights(...)                              aggregation: what one token counts in the minibatch
    terms   = LOSSES[name](PolicyBatch(...), settings)         policy/: one loss per file
    penalty = kl_estimate(...)                                kl: where it acts in the loss
    entropy = entropy_from_logits(...)
    loss    = (weights * (terms.per_token + coefficient * penalty - entropy_coefficient * entropy)).sum()

Which tokens count is decided before `weights` are (rank/masking.py), and `weights` know how many there are in the whole
minibatch. So the sum of `loss` over all ranks and micro-batches is the loss of the minibatch, however it was split.

Import from the modules; this one stays free of torch, because the controller imports `losses.kl_controller`.
"""
