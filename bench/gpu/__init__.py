"""Whole RL steps on GPUs, ours and TRL's, on the same work, machine and run."""
