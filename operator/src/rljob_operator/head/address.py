"""Where the servers of a head pod are."""

from dataclasses import dataclass

RAY_PORT = 8265
AGENT_PORT = 8900


def head_service(cluster: str) -> str:
    """Name of the Service that KubeRay makes for the head of a RayCluster."""
    return f"{cluster}-head-svc"


@dataclass(frozen=True, slots=True)
class HeadAddress:
    """The operator's setting of how to reach head pods, a template with {service}, {namespace} and {port}.

    Outside a cluster it names a proxy: "http://127.0.0.1:8001/{namespace}/{service}:{port}".
    """

    template: str = "http://{service}.{namespace}.svc:{port}"

    def __post_init__(self) -> None:
        try:
            known = self._url("cluster", "namespace", 1)
        except (KeyError, IndexError, ValueError, AttributeError) as error:
            raise ValueError(f"head address {self.template!r} may name {{service}}, {{namespace}}, {{port}}") from error
        if not known.startswith(("http://", "https://")):
            raise ValueError(f"head address {self.template!r} must begin with http:// or https://")

    def ray(self, namespace: str, cluster: str) -> str:
        return self._url(namespace, cluster, RAY_PORT)

    def agent(self, namespace: str, cluster: str) -> str:
        return self._url(namespace, cluster, AGENT_PORT)

    def _url(self, namespace: str, cluster: str, port: int) -> str:
        return self.template.format(service=head_service(cluster), namespace=namespace, port=port).rstrip("/")
