"""`rljob agent`: a run's progress over HTTP, served from the files of its volume.

It runs beside the driver in its own container and answers while the driver is dead. It therefore reads only files and
imports neither torch nor Ray.
"""
