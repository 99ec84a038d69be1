"""Checkpoints on the run's volume: content, commit, lineage, retention and export."""
