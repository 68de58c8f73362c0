# syntax=docker/dockerfile:1
# The development cluster, for compose.yaml.
FROM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o /out/devcluster ./proof/cmd/devcluster

FROM scratch
COPY --from=build /out/devcluster /devcluster
USER 65532:65532
ENTRYPOINT ["/devcluster"]
