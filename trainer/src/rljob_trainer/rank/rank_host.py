"""The Ray worker of a trainer rank. Light, because the driver imports it."""

from typing import TYPE_CHECKING

from rljob_api import ResolvedSpec
from rljob_trainer.rank.calls import RankCalls
from rljob_trainer.rank.settings import RankSettings
from rljob_trainer.workers.host import Host

if TYPE_CHECKING:
    from rljob_trainer.rank.rank import Rank


_TOGETHER = frozenset(
    method.__name__
    for method in (RankCalls.prepare, RankCalls.update, RankCalls.supervised_step, RankCalls.score_probes)
)
"""Calls in which ranks meet at every layer. Elsewhere one may read a large model from a slow disk, say."""


class RankHost(Host):
    """A trainer rank."""

    worker: "Rank"

    def create(self, spec: ResolvedSpec, settings: RankSettings) -> "Rank":
        from rljob_trainer.rank.rank import Rank

        return Rank(spec, settings)

    def detail(self) -> str:
        """How many collectives it has entered: a rank that hangs is behind those that wait for it."""
        return f", {self.worker.collectives()} collectives"

    def pace(self) -> int | None:
        """Collectives, during a step."""
        doing = {method for method, _ in list(self._doing.values())}
        return self.worker.collectives() if doing & _TOGETHER else None
