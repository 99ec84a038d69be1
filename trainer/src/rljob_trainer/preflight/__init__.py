"""Measures the fabric between the ranks of a job before a model is loaded, as nccl-tests does.

    check       what is measured, in which order, within which time: pairs first, then collectives by size
    members     one process per rank; each runs what `check` asks of all of them
      local       processes of this machine                  `rljob preflight`, `python -m bench.preflight`
      workers     Ray workers, one at each rank's place      an attempt
    member      one of these processes: buffers, times, and a comparison of every element
    fabric      NCCL through cupy, NCCL or gloo through torch
    verdict     which pairs of nodes are below the minimum or wrong, and which nodes are to blame

Only `workers` and `attempt` need Ray and the API's models, so the measurement runs with torch and cupy alone.
"""
