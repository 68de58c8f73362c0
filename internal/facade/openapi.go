package facade

import _ "embed"

// openAPI describes the HTTP face.
//
//go:embed openapi.yaml
var openAPI []byte
