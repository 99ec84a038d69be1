# What stands in for python:slim where there is no registry: the context is what debootstrap made.
FROM scratch
COPY . /
ENV PATH=/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin
CMD ["bash"]
