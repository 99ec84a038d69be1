"""`rljob run`: trains on this machine and supervises the driver as the operator does in a cluster."""
