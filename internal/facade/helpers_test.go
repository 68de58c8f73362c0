package facade

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

var errBug = errors.New("a bug")

func itoa(i int) string { return strconv.Itoa(i) }

func typeName(v any) string { return fmt.Sprintf("%T", v) }

func contains(s, part string) bool { return strings.Contains(s, part) }
