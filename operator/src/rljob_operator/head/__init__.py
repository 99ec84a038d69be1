"""The head pod of a job's Ray cluster, as the operator calls it.

    RayJobs --> Ray's dashboard, port 8265: starts, watches and stops drivers
    Agent   --> rljob agent,     port 8900: progress, checkpoints, exit records; it answers while the driver is dead

A call ends within its deadline. It returns, or raises HeadUnreachable if there is no answer, so try again; or
HeadRefused if the server refuses or answers nonsense, so look into it.

The clients share the caller's session, from `shared_session`: waiting for one of its connections counts against the
deadline, so with a limit heads that hang would make others look unreachable.
"""
