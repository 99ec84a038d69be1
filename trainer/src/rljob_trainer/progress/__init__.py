"""What a run tells the outside, and how it is shown. Light: no torch, no Ray.

    driver                                volume                      readers
    MetricsWriter.write    ----------->   metrics/a<n>.jsonl   --->   read_metrics: plot, agent, status
    ProgressReporter       ----------->   control/progress.json --->  views.Reporter (rljob run), agent, status
    logging.configure      ----------->   logs/a<n>.jsonl      --->   warnings in views

Readers only ever read files, so they work the same while the driver lives, after it died, and from another machine.
"""
