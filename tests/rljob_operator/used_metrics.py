"""The operator's metrics, each of which tells something: one that was never used is not exposed."""

from rljob_operator.runtime.metrics import Metrics


def used_metrics() -> Metrics:
    metrics = Metrics()
    metrics.read(jobs=dict, queue_depth=lambda: 0, leader=lambda: True)
    metrics.restarted("DriverLost")
    metrics.api_call("get", "pods", "200", 0.1)
    with metrics.reconcile():
        pass
    return metrics
