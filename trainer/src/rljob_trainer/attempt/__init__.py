"""One attempt: a driver from its claim to its exit record. driver.py runs it, wiring.py connects its parts."""
