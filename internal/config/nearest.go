package config

import (
	"fmt"
	"slices"
	"strings"
)

// Nearest returns the one of names that a typing error may have turned into name. That is the one
// that the fewest edits make equal to name, if they are at most a third of its letters, or only
// change their order. Otherwise it is a name that begins or ends with name. It returns "" if no
// name is near.
func Nearest(name string, names []string) string {
	name = name[:min(len(name), 100)]
	if len(name) < 3 {
		return ""
	}
	best := closest(name, names)
	if best != "" && (distance(name, best) <= len(name)/3 || sameLetters(name, best)) {
		return best
	}
	for _, n := range names {
		if strings.HasPrefix(n, name) || strings.HasSuffix(n, name) {
			return n
		}
	}
	return ""
}

// closest returns the name that the fewest edits make equal to name, however many they are.
func closest(name string, names []string) (best string) {
	least := 0
	for _, n := range names {
		if d := distance(name, n); best == "" || d < least {
			best, least = n, d
		}
	}
	return best
}

// sameLetters reports whether two words have the same letters, in any order.
func sameLetters(a, b string) bool {
	inOrder := func(text string) []byte { return slices.Sorted(slices.Values([]byte(text))) }
	return slices.Equal(inOrder(a), inOrder(b))
}

// distance is Levenshtein's.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		corner := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := corner
			if a[i] != b[j] {
				cost++
			}
			corner = row[j+1]
			row[j+1] = min(cost, row[j]+1, corner+1)
		}
	}
	return row[len(b)]
}

// unknown says that a name is not a setting, and which setting or section may be meant.
func (s *Settings) unknown(name string) string {
	text := fmt.Sprintf("%.100q is not a setting", name)
	setting, section := near(name, ".", s.names(strings.Clone))
	switch {
	case setting != "":
		text += "; the nearest is " + setting
	case section != "":
		text += "; the nearest section is " + section
	}
	return text
}

// unknownEnv is unknown for a variable without its prefix.
func (s *Settings) unknownEnv(prefix, env string) string {
	text := "not a setting"
	setting, section := near(env, "_", s.names(environmentName))
	switch {
	case setting != "":
		text += fmt.Sprintf("; the nearest is %s%s (%s)", prefix, setting, s.byEnv[setting].name)
	case section != "":
		text += fmt.Sprintf("; the nearest section is %s%s_", prefix, section)
	}
	return text
}

// near returns the setting that a name may be meant for, or else the section. A name in a section that
// exists is meant for a setting of that section, however far it is.
func near(name, separator string, names []string) (setting, section string) {
	if n := Nearest(name, names); n != "" {
		return n, ""
	}
	sectionOf := func(n string) string { before, _, _ := strings.Cut(n, separator); return before }
	var within, sections []string
	for _, n := range names {
		if sectionOf(n) == sectionOf(name) {
			within = append(within, n)
		}
		sections = append(sections, sectionOf(n))
	}
	if n := closest(name[:min(len(name), 100)], within); n != "" {
		return n, ""
	}
	return "", Nearest(sectionOf(name), sections)
}
