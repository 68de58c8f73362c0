// The container image's builder: a module of its own, so that what it needs stays off the product's graph.
module github.com/ydb-sidecar/sidecar/deploy/image

go 1.26.0

require (
	github.com/google/go-containerregistry v0.22.1
	github.com/google/licensecheck v0.3.1
	golang.org/x/crypto/x509roots/fallback v0.0.0-20261030153154-30a33513ff6d
)

require (
	github.com/google/go-cmp v0.7.0 // indirect
	github.com/klauspost/compress v1.19.2 // indirect
	github.com/opencontainers/go-digest v1.0.0 // indirect
	github.com/opencontainers/image-spec v1.1.1 // indirect
	golang.org/x/sync v0.22.0 // indirect
)
