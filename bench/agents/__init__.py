"""`make bench-agents`: what episodes of several turns cost an engine, on this machine's CPU.

played.py    environments that sleep, and what they note
jobs.py      the jobs
measure.py   runs them, and what each shows
page.py      agents.md and agents.png, from agents.json alone
"""
