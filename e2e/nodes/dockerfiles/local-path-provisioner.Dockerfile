FROM scratch
COPY local-path-provisioner /local-path-provisioner
USER 65532:65532
ENTRYPOINT ["/local-path-provisioner"]
