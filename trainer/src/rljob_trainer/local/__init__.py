"""`rljob run`: one machine in the cluster's place. It supervises the driver as the operator does in a cluster."""
