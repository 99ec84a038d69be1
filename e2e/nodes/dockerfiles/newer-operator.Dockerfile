# The operator as a release after it would be: under another version, and with other RayClusters for new jobs.
ARG OPERATOR
FROM ${OPERATOR}
ARG VERSION
USER 0:0
RUN sed --in-place "s/^Version: .*/Version: ${VERSION}/" /opt/rljob/lib/python3*/site-packages/rljob_operator-*.dist-info/METADATA \
 && sed --in-place "s/^RENDERER_VERSION = .*/RENDERER_VERSION = \"${VERSION}\"/" /opt/rljob/lib/python3*/site-packages/rljob_operator/render/ray_cluster.py
USER 65532:65532
