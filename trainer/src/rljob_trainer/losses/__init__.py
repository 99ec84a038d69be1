"""From log-probabilities and advantages to one number to minimise, all per token and flat.

    weights = token_weights(...)                              aggregation: what one token counts in the minibatch
    terms   = LOSSES[name](PolicyBatch(...), settings)         policy/: one loss per file
    penalty = kl_estimate(...)                                kl: where it acts in the loss
    entropy = entropy_from_logits(...)
    loss    = (weights * (terms.per_token + coefficient * penalty - entropy_coefficient * entropy)).sum()

The sum of `loss` over all ranks and micro-batches is the loss of the minibatch, however it was split. FSDP divides
gradients by the number of ranks: undo that by multiplying with it, or have gradients summed.

Import from the modules; this one stays free of torch, because the controller imports `losses.kl_controller`.
"""
