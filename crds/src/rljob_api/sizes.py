"""A spec for fewer pods than it asks for, as a queue may admit it."""

from collections.abc import Mapping

from rljob_api.schema import structural_schema
from rljob_api.v1alpha1 import RLJobSpec
from rljob_api.validation.rules import rule_findings


def sized(spec: RLJobSpec, nodes: int, replicas: Mapping[str, int]) -> RLJobSpec:
    """At most so many worker pods, and so many servers of each reward model that is named.

    The number of worker pods is the largest that the rules accept. A rule of the API makes sure of one: minNodes.
    """
    models = [
        model.model_copy(update={"replicas": min(model.replicas, replicas.get(model.name, model.replicas))})
        for model in spec.rewards.models
    ]
    spec = spec.model_copy(update={"rewards": spec.rewards.model_copy(update={"models": models})})
    most, least = min(nodes, spec.cluster.nodes), spec.cluster.min_nodes or spec.cluster.nodes
    smaller = (_with_nodes(spec, number) for number in range(most, least - 1, -1))
    return next(filter(_is_valid, smaller), _with_nodes(spec, most))


def _with_nodes(spec: RLJobSpec, nodes: int) -> RLJobSpec:
    return spec.model_copy(update={"cluster": spec.cluster.model_copy(update={"nodes": nodes})})


def _is_valid(spec: RLJobSpec) -> bool:
    written = spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    return not any(rule_findings(structural_schema(RLJobSpec), written))
