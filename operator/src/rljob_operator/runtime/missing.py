"""Which OPTIONAL kinds the operator cannot list: the cluster lacks them, or a Role of one namespace leaves them out."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from rljob_operator.kube.kinds import Kind


@dataclass(frozen=True)
class Missing:
    """kinds: by namespace, as of its last list; those under None are missing in every namespace."""

    kinds: Mapping[str | None, frozenset[Kind]] = field(default_factory=dict)

    def there(self, namespace: str) -> frozenset[Kind]:
        """What jobs of a namespace have to do without."""
        return self._of(None) | self._of(namespace)

    @property
    def everywhere(self) -> frozenset[Kind]:
        """What no watch can report."""
        each = [kinds for namespace, kinds in self.kinds.items() if namespace is not None]
        return self._of(None) | (frozenset.intersection(*each) if each else frozenset())

    def after(self, listed: Mapping[str | None, Iterable[Kind]]) -> "Missing":
        """With newer lists of some namespaces."""
        return Missing({**self.kinds, **{namespace: frozenset(kinds) for namespace, kinds in listed.items()}})

    @property
    def paths(self) -> list[str]:
        """Of the lists that single namespaces refuse."""
        return [kind.path(space) for space, kinds in self.kinds.items() if space is not None for kind in kinds]

    def differs(self, other: "Missing", namespace: str) -> frozenset[Kind]:
        """What only one of the two lacks there."""
        return self.there(namespace) ^ other.there(namespace)

    def _of(self, namespace: str | None) -> frozenset[Kind]:
        return self.kinds.get(namespace, frozenset())
