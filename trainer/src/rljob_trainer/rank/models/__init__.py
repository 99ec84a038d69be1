"""The models that a rank holds a shard of.

policy      trained, in each checkpoint, sent to the engines
reference   the policy as RL began: frozen, in each checkpoint because no other file has it after supervised steps
average     of the policy, in each checkpoint; takes its place in validations
critic      trained, in each checkpoint: values of tokens, for advantage gae

A new model is one more ModelRole of the rank: it is saved and restored with the others.
"""
