package findings

import "strings"

// docs is where the documentation is read.
const docs = "https://github.com/ydb-sidecar/sidecar/blob/main/docs/"

// Contents is where the list of all pages of the documentation is read.
const Contents = docs + "README.md"

// Runbook is where the runbook is read. Each code has a section there.
const Runbook = docs + "operations/runbook.md"

// AppHangs is where to read what to do about calls that take too long.
const AppHangs = docs + "how-to/my-app-hangs.md"

// Link is the address of the section of the runbook about the code.
func (c Code) Link() string { return Runbook + "#" + strings.ToLower(string(c)) }
