# growctl in a container, as a user without privileges. docs/install.md has the commands.
#
#   docker build --target cpu --tag growctl:cpu .
#   docker build --target cuda --tag growctl:cuda .
#
# Neither target needs an image with CUDA: torch's wheels bring CUDA's libraries, and the host brings the driver.

# The digest of the image for all architectures. It was copied from other projects that pin this tag, not pulled.
FROM python:3.11.14-slim-bookworm@sha256:65a93d69fa75478d554f4ad27c85c1e69fa184956261b4301ebaf6dbb0a3543d AS python
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1


FROM python AS wheel
WORKDIR /source
COPY . .
RUN pip wheel --no-deps --wheel-dir /wheel .


# Torch's builds for CPUs have a version such as 2.13.0+cpu, which pip prefers to the 2.13.0 of PyPI.
FROM python AS cpu-environment
COPY --from=wheel /wheel /wheel
RUN python -m venv /opt/growctl \
    && /opt/growctl/bin/pip install --extra-index-url https://download.pytorch.org/whl/cpu /wheel/*.whl


# On Linux, torch's builds on PyPI are those for CUDA. The extra `gpu` brings the kernels of `launch.kernels: triton`.
FROM python AS cuda-environment
COPY --from=wheel /wheel /wheel
RUN python -m venv /opt/growctl \
    && /opt/growctl/bin/pip install "$(echo /wheel/*.whl)[gpu]"


# `launch.kernels: compiled` and `triton` compile while they run, so the compiler stays in the image.
FROM python AS base
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
# The user's number decides who owns the runs on the host: --build-arg UID="$(id -u)". Not 0, which is root's here too.
# --no-log-init: useradd would fill a log up to the user's number, gigabytes for a large one.
ARG UID=1000
RUN useradd --no-log-init --create-home --uid "${UID}" growctl && install --directory --owner growctl /work
ENV PATH=/opt/growctl/bin:$PATH PYTHONUNBUFFERED=1
USER ${UID}
WORKDIR /work
ENTRYPOINT ["growctl"]
CMD ["--help"]


FROM base AS cpu
COPY --from=cpu-environment /opt/growctl /opt/growctl


FROM base AS cuda
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=cuda-environment /opt/growctl /opt/growctl
