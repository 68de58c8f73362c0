package findings

import "strings"

// Runbook is where the runbook is read. Each code has a section there.
const Runbook = "https://github.com/ydb-sidecar/sidecar/blob/main/docs/operations/runbook.md"

// Link is the address of the section of the runbook about the code.
func (c Code) Link() string { return Runbook + "#" + strings.ToLower(string(c)) }
