"""The RLJob runtime. Importing the package imports neither torch nor Ray: `rljob agent` and `rljob validate` stay light."""
