"""`rljob convert`: an RLJob from the settings of verl or TRL.

source   file, script or list      -> dotted settings
tables   verl_table, trl_table     which setting is which field, and which has none
rules    verl_rules, trl_rules     fields that depend on several settings
document fields with their notes   -> YAML
"""
