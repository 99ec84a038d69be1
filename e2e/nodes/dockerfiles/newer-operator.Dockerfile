# The operator as a release after it would be: the same code, under another version.
ARG OPERATOR
FROM ${OPERATOR}
ARG VERSION
USER 0:0
RUN sed --in-place "s/^Version: .*/Version: ${VERSION}/" /opt/rljob/lib/python3*/site-packages/rljob_operator-*.dist-info/METADATA
USER 65532:65532
