"""The RLJob runtime. Importing it imports neither torch nor Ray: `rljob agent` and `rljob validate` stay light."""
