# One file, one image per part: docker build --target server|worker|beat|agent .
# The agent's image holds the base install only: no database driver, no web server, no torch.

# What is installed is fixed by hashes (requirements/, made by `make requirements`); PYTHON_IMAGE may name a digest.
ARG PYTHON_IMAGE=python:3.12-slim
FROM ${PYTHON_IMAGE} AS base
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /opt/tightship

FROM base AS wheel
COPY requirements/build.txt ./
RUN pip install --require-hashes -r build.txt
COPY pyproject.toml README.md LICENSE ./
COPY platform ./platform
COPY collectors ./collectors
COPY analyzers ./analyzers
COPY dashboard ./dashboard
COPY offload ./offload
COPY examples ./examples
RUN pip wheel --no-deps --no-build-isolation --wheel-dir /wheels .

# API, workers, analyzers and dashboard share one install, so that their layers are stored once.
FROM base AS platform
COPY requirements/server.txt ./
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    pip install --require-hashes -r server.txt && pip install --no-deps /wheels/tightship-*.whl
# An own user; the folders exist so that volumes mounted over them belong to it.
RUN useradd --uid 10001 --create-home tightship \
    && install -d -o tightship -g tightship -m 0700 /var/lib/tightship /data /data/artifacts
ENV TIGHTSHIP_HOME=/var/lib/tightship TIGHTSHIP_ARTIFACTS_URL=/data/artifacts
USER tightship

FROM platform AS server
EXPOSE 8050
CMD ["tightship", "server", "--host", "0.0.0.0"]

FROM platform AS worker
CMD ["tightship", "worker"]

FROM platform AS beat
CMD ["tightship", "beat"]

# Runs as root: it reads the environment of other users' processes and answers in their run directories.
FROM base AS agent
COPY requirements/agent.txt ./
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    pip install --require-hashes -r agent.txt && pip install --no-deps /wheels/tightship-*.whl \
    && install -d -m 0700 /var/lib/tightship
ENV TIGHTSHIP_HOME=/var/lib/tightship NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=utility
CMD ["tightship", "agent"]
