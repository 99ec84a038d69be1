"""`make bench`: one GRPO step, ours and TRL's, on the same model, prompts, lengths and machine, in turns.

shapes.py     the two models and the job
runs.py       one run of either: seconds of each step, what the workers did meanwhile, peak memory
trl_steps.py  TRL's side, in a process of its own
results.py    cpu.jsonl, a line for each run
page.py       cpu.md and cpu.png, from cpu.jsonl alone
"""
