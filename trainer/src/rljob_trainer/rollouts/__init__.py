"""From prompts to scored groups: the engines, the scorer, and the replacement of those that are lost."""
