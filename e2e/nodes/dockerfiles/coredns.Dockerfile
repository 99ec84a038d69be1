FROM scratch
COPY coredns /coredns
USER 65532:65532
ENTRYPOINT ["/coredns"]
