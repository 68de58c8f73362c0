# syntax=docker/dockerfile:1
# The Python app of examples/ with the client of clients/python, for compose.yaml.
FROM python:3.11-slim
WORKDIR /src
COPY requirements.txt ./
COPY clients/python ./clients/python
RUN pip install --no-cache-dir --disable-pip-version-check -r requirements.txt
COPY examples/python /app
WORKDIR /app
ENV PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
