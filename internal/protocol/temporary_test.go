package protocol

import (
	"math"
	"regexp"
	"strings"
	"testing"

	"github.com/ydb-sidecar/sidecar/proof/short"
	"github.com/ydb-sidecar/sidecar/proof/stepcount"
)

func TestTemporaryTables(t *testing.T) {
	for text, want := range map[string]bool{
		"CREATE TEMP TABLE t (a Int32)": true, "create temporary table t": true, "CREATE TEMP\n\tTABLE t": true,
		"Create Temporary -- why\n table t": true,
		"CREATE TEMP/* c */TABLE t":         true, "CREATE TEMPORARY TABLESTORE t": true, "x;CREATE TEMP TABLE": true,
		"CREATE TEMP --\rTABLE t": true, "CREATE TEMPORARY-- c\r\n-- d\r/**/TABLE": true,
		"--!ansi_lexer\nCREATE TEMP /*/**/*/ TABLE t": true,
		"CREATE TEMP/*/*/ */ */TABLE t":               true, "CREATE TEMP -- a\r/* /* */ */ TABLE t": true,
		"CREATE TEMP /* /* /**/ */*/TABLE t": true,
		"temp /* a /* b */ FROM":             true, "temp /* a / * b */ FROM": false, "temp /* /*": false,
		"SELECT a AS temp -- TABLE\rFROM": false,
		"SELECT temp FROM weather":        false, "SELECT 1 AS temp": false, "CREATE TABLE t (temp Double)": false,
		"CREATE TABLE temp (a Int32)": false,
		"SELECT temperature table":    false, "DROP TABLE attemp TABLE": false, "temp": false,
		"SELECT a -- temp\n FROM table": false, "": false,
		"temp/": false, "temp-- table": false, "temp - table": false, "TEMPORAR TABLE": false, "SELECT temporarily table": false,
	} {
		if got := makesTemporary([]byte(text), true); got != want {
			t.Errorf("%q: %v; want %v", text, got, want)
		}
		for pad := range 20 {
			if got := makesTemporary([]byte(strings.Repeat(" ", pad)+text), true); got != want {
				t.Errorf("%d blanks and %q: %v; want %v", pad, text, got, want)
			}
		}
		if !want {
			continue
		}
		for pad := range 40 {
			padded := strings.Repeat("-- \n", pad) + text
			for piece := 1; piece < 30; piece++ {
				if !inPieces([]byte(padded), piece) {
					t.Errorf("%q is missed in pieces of %d", padded, piece)
				}
			}
		}
	}
}

// temporaryTable is what makesTemporary looks for in a whole text: TABLE behind blanks and comments, or
// a comment among them with another in it.
var temporaryTable = regexp.MustCompile(
	`(?i)(^|[^a-z0-9_\x80-\xff])temp(orary)?` + between + `*(` + between + `table|/\*([^*]|\*+[^*/])*/\*(/|(?s:.*)\*/))`,
)

const between = `([ \t-\r]|--[^\r\n]*[\r\n]|/\*([^*]|\*+[^*/])*\*+/)`

// latin1 has a character for each byte of text, which need not be UTF-8.
func latin1(text []byte) string {
	var b strings.Builder
	for _, c := range text {
		b.WriteRune(rune(c))
	}
	return b.String()
}

// unbounded searches a text however many bytes it has to look at, and returns how many those were.
func unbounded(text []byte, last bool) (hit bool, seen int) {
	left := math.MaxInt
	hit = searchTemporary(text, last, &left)
	return hit, math.MaxInt - left
}

// bounded is makesTemporary, and how many bytes it looked at behind words TEMP.
func bounded(text []byte, last bool) (hit bool, seen int) {
	left := lookAhead * len(text)
	hit = searchTemporary(text, last, &left)
	return hit, lookAhead*len(text) - left
}

func FuzzTemporaryTables(f *testing.F) {
	f.Add([]byte("CREATE /* temp */ TEMPORARY -- table\n table x"), uint8(3))
	f.Add([]byte("temp temp TEMP TABLE"), uint8(1))
	for _, attack := range stepcount.Temps(100) {
		f.Add([]byte(attack), uint8(17))
	}
	f.Fuzz(func(t *testing.T, text []byte, piece uint8) {
		hit, _ := unbounded(text, true)
		if want := temporaryTable.MatchString(latin1(text)); hit != want {
			t.Errorf("%q: %v; the expression finds %v", text, hit, want)
		}
		if hit && !makesTemporary(text, true) {
			t.Errorf("%q is missed within the bound", text)
		}
		if makesTemporary(text, true) && !inPieces(text, int(piece)+1) && hit {
			t.Errorf("%q is missed in pieces of %d", text, int(piece)+1)
		}
		for _, last := range []bool{true, false} {
			if _, seen := bounded(text, last); seen > (lookAhead+1)*len(text) {
				t.Errorf("%q, last %v: %d bytes looked at behind words TEMP, of %d in all", text, last, seen, len(text))
			}
		}
	})
}

// What is looked at behind words TEMP grows as the text does.
func TestTemporaryTablesAreSoughtInLinearTime(t *testing.T) {
	for _, size := range []int{64 << 10, 1 << 20, 4 << 20}[:short.Of(3, 2)] {
		for name, text := range stepcount.Temps(size) {
			for _, last := range []bool{true, false} {
				if _, seen := bounded([]byte(text), last); seen > (lookAhead+1)*len(text) {
					t.Errorf("%s, %d bytes, last %v: looked at %d", name, size, last, seen)
				}
			}
		}
	}
	// The count counts: without the bound it grows with the square.
	if _, seen := unbounded([]byte(stepcount.Temps(8 << 10)["lines that end at the end"]), true); seen < 100*8<<10 {
		t.Errorf("only %d bytes are looked at without a bound", seen)
	}
}
