FROM scratch
COPY kuberay-operator /manager
USER 65532:65532
ENTRYPOINT ["/manager"]
