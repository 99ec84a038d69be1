"""Ray workers that outlive their driver: the next driver takes them over and continues with their state.

Roster       driver: finds living workers by name, starts missing ones, ends them
Heartbeats   driver: asks all workers for heartbeats and knows which are silent
Host         worker: obeys the newest attempt only, and exits if no attempt claims it
"""
