"""Ray workers that outlive the driver that made them: the next driver continues with what they hold.

Roster       driver: finds living workers by name, starts the missing ones, ends them
Heartbeats   driver: asks all of them for signs of life, and knows which of them are silent
Host         worker: obeys the newest attempt only, and exits when no attempt claims it
"""
