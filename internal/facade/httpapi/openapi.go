package httpapi

import _ "embed"

// openAPI describes the HTTP API.
//
//go:embed openapi.yaml
var openAPI []byte
