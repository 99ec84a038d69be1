"""One attempt: a driver's run from its claim to its exit record.

driver.py      the whole attempt
claim.py       the claim on the volume and the exit record
resumption.py  the checkpoint that the attempt continues
wiring.py      the parts of the attempt
interrupt.py   SIGTERM and SIGINT
"""
