// Package helmtest checks what deploys the sidecar, with the programs' own
// readers: manifests and the Helm chart with the types of Kubernetes, strictly;
// settings with the sidecar itself; rules with Prometheus' promtool; the Compose
// file with Compose's loader. It is a module of its own, so that none of these
// is in the product's graph.
package helmtest
