// Package deploy holds the Dockerfile and the Kubernetes manifests, and the
// tests that read them: every setting they name must exist, every port must be
// one that a kubelet can reach, and nothing may run as root.
package deploy
