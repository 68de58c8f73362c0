package stepcount

import "strings"

// Temps are texts of about so many bytes in which each TEMP is followed by much that is no TABLE.
func Temps(size int) map[string]string {
	attack := func(word, end string) string { return strings.Repeat(word, size/len(word)) + end }
	return map[string]string{
		"comments that do not end":       attack("temp/*", ""),
		"comments that end at the end":   attack("temp/*", "*/"),
		"the same, and a table":          attack("temp/*", "*/ t"),
		"long words":                     attack("temporary/*", ""),
		"long words that end at the end": attack("temporary/*", "*/"),
		"lines that do not end":          attack("temp--", ""),
		"lines that end at the end":      attack("temp--", "\n"),
		"a chain of comments":            attack("/*temp/**/", ""),
		"a chain of lines":               attack("temp--\n--", ""),
		"lines that end with returns":    attack("temp--", "\r"),
		"a chain with returns":           attack("temp--\r--", ""),
		"both":                           attack("temp--/*", "*/\n"),
		"other letters":                  attack("TeMp/*", "*/"),
	}
}
