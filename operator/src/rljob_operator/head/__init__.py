"""The head pod of a job's Ray cluster, as the operator calls it.

    RayJobs --> Ray's dashboard, port 8265: starts, watches and stops drivers
    Agent   --> rljob agent,     port 8900: progress, checkpoints, exit records; it answers while the driver is dead

A call ends within its deadline. It answers, or raises one of two: HeadUnreachable, nobody is there or able to answer,
so try again; HeadRefused, somebody said no or said nothing sensible, so look into it.

The clients share a session of the caller's, which `shared_session` makes: waiting for a connection of it counts against
the deadline, so with a limit heads that hang would make others look unreachable.
"""
