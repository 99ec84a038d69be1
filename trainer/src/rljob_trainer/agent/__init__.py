"""`rljob agent`: a run's progress over HTTP, served from the files of its volume.

It runs beside the driver, in a container of its own, and answers while the driver is dead. So it reads only files, and
loads neither torch nor Ray.
"""
