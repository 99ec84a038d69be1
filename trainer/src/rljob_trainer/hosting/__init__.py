"""Ray workers that outlive the driver that made them, so that the next driver goes on with what they hold.

Roster   driver: finds living workers by name, starts the missing ones, ends them
Pulse    driver: asks all of them for signs of life, and knows who is silent
Host     worker: obeys the newest attempt only, and leaves when no attempt claims it
"""
