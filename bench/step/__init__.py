"""`make bench`: one GRPO step, ours and TRL's, on the same model, prompts, lengths and machine, in turns.

shapes.py     the two models and the job
ours.py       runs of `rljob`: seconds of each step and phase
trl_steps.py  the same steps by TRL's GRPOTrainer, in a process of its own
page.py       cpu.md and cpu.png
"""
