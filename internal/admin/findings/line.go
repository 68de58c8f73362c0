package findings

import "strings"

// maxLine bounds an error in a finding, in bytes.
const maxLine = 200

// OneLine returns the first line of an error, of at most maxLine bytes.
func OneLine(err error) string {
	text, _, _ := strings.Cut(err.Error(), "\n") // the first of several
	text = strings.Join(strings.Fields(text), " ")
	return strings.ToValidUTF8(text[:min(len(text), maxLine)], "")
}
