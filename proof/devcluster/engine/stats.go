package engine

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_TableStats"
)

// TableStats says what one execution did to the rows of one table.
type TableStats struct {
	Path                    string // absolute
	Reads, Updates, Deletes uint64 // rows
	UpdateBytes             uint64 // about
}

// Stats says what one execution did and what it cost.
type Stats struct {
	Compiled    bool // false: the plan came from the cache
	CompileTime time.Duration
	Duration    time.Duration // all of it
	Tables      []TableStats
	Plan, AST   string // for Request.Explain and Request.Plan
}

// Proto returns the stats in their wire form: one phase with all tables.
func (s Stats) Proto() *Ydb_TableStats.QueryStats {
	us := func(d time.Duration) uint64 { return max(1, uint64(d.Microseconds())) }
	phase := &Ydb_TableStats.QueryPhaseStats{DurationUs: us(s.Duration), CpuTimeUs: us(s.Duration)}
	for _, t := range s.Tables {
		a := &Ydb_TableStats.TableAccessStats{Name: t.Path, PartitionsCount: 1}
		if t.Reads > 0 {
			a.Reads = &Ydb_TableStats.OperationStats{Rows: t.Reads}
		}
		if t.Updates > 0 {
			a.Updates = &Ydb_TableStats.OperationStats{Rows: t.Updates, Bytes: t.UpdateBytes}
		}
		if t.Deletes > 0 {
			a.Deletes = &Ydb_TableStats.OperationStats{Rows: t.Deletes}
		}
		phase.TableAccess = append(phase.TableAccess, a)
		phase.AffectedShards++
	}
	return &Ydb_TableStats.QueryStats{
		QueryPhases: []*Ydb_TableStats.QueryPhaseStats{phase},
		Compilation: &Ydb_TableStats.CompilationStats{FromCache: !s.Compiled,
			DurationUs: uint64(s.CompileTime.Microseconds()), CpuTimeUs: uint64(s.CompileTime.Microseconds())},
		ProcessCpuTimeUs: us(s.Duration),
		QueryPlan:        s.Plan,
		QueryAst:         s.AST,
		TotalDurationUs:  us(s.Duration),
		TotalCpuTimeUs:   us(s.Duration),
	}
}

// explain describes the plan in the shape of the server's: JSON with the keys meta, tables
// and Plan, and a text of the statements.
func (p *plan) explain() (planJSON, ast string) {
	type node struct {
		Type  string `json:"Node Type"`
		ID    int    `json:"PlanNodeId"`
		Plans []node `json:"Plans,omitempty"`
	}
	type access struct {
		Name string `json:"name"`
	}
	doc := struct {
		Meta struct {
			Version string `json:"version"`
			Type    string `json:"type"`
		} `json:"meta"`
		Tables []access `json:"tables"`
		Plan   node     `json:"Plan"`
	}{Tables: []access{}, Plan: node{Type: "Query"}}
	doc.Meta.Version, doc.Meta.Type = "0.2", "query"
	for _, t := range p.tables {
		doc.Tables = append(doc.Tables, access{t.path})
	}
	for i, k := range p.kinds {
		doc.Plan.Plans = append(doc.Plan.Plans, node{Type: k, ID: i + 1})
	}
	out, err := json.Marshal(doc)
	if err != nil { // cannot be: the document holds texts and numbers
		out = []byte("{}")
	}
	return string(out), fmt.Sprintf("(\n(return (%s))\n)", strings.Join(p.kinds, " "))
}
