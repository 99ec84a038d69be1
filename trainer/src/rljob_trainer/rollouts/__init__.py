"""From prompts to scored groups: engines and the rollout host, and the replacement of those that are lost."""
