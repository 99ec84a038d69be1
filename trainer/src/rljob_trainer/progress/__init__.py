"""A run's progress: files that the driver writes, and their readers. Light: no torch, no Ray.

    driver                                volume                      readers
    MetricsWriter.write    ----------->   metrics/a<n>.jsonl   --->   read_metrics: plot, agent, status
    ProgressReporter       ----------->   control/progress.json --->  views.Reporter (rljob run), agent, status
    logging.configure      ----------->   logs/a<n>.jsonl      --->   warnings in views

Readers use only files, so they also work after the driver died, and on another machine.
"""
