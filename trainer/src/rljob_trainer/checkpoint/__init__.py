"""Checkpoints on the run's volume: what is in them, when they count, which one a run continues from, and export."""
