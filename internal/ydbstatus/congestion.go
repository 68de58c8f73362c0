package ydbstatus

import (
	"strings"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

// The issue codes that say what has too much to do.
const (
	issueUnavailable  = 2005   // KIKIMR_TEMPORARILY_UNAVAILABLE: of a shard or of another node
	issueOverloaded   = 2006   // KIKIMR_OVERLOADED: of a shard or of another node
	issueDiskQuota    = 2033   // KIKIMR_DISK_SPACE_EXHAUSTED, newer KIKIMR_DATABASE_DISK_SPACE_QUOTA_EXCEEDED
	issueDiskGroup    = 2036   // KIKIMR_DISK_GROUP_OUT_OF_SPACE
	issueShardError   = 200300 // GENERIC_DATASHARD_ERROR
	issueUsageLimited = 200803 // YDB_RESOURCE_USAGE_LIMITED
)

// The texts that say it where no code does.
const (
	textCompileQueue = "maximum number of requests in compile service queue"
	textPoolFailed   = "Query failed during adding/waiting in workload pool "
	textPoolQueue    = "Request was rejected, number of local pending requests is "
	textDisk         = "out of disk space"
	textTable        = "Table `"
	textTablet       = "Tablet "
	textBulk         = "Bulk upsert to table '"
	forPool          = " for pool "
)

// Congested tells what an issue of an answer OVERLOADED or UNAVAILABLE is about, and the name
// of the table or of the resource pool, if it has one. CongestedUnknown: it does not say.
func Congested(code uint32, message string) (c cluster.Congestion, subject string) {
	switch {
	case code == issueUsageLimited:
		return cluster.CongestedQuota, ""
	case code == issueDiskQuota, code == issueDiskGroup, strings.Contains(message, textDisk):
		return cluster.CongestedDisk, tableIn(message)
	case strings.Contains(message, textCompileQueue):
		return cluster.CongestedNode, ""
	case strings.HasPrefix(message, textPoolFailed):
		return cluster.CongestedPool, word(message[len(textPoolFailed):])
	case strings.HasPrefix(message, textPoolQueue):
		_, name, _ := strings.Cut(message, forPool)
		return cluster.CongestedPool, word(name)
	case code == issueShardError,
		(code == issueOverloaded || code == issueUnavailable) &&
			(strings.Contains(message, textTable) || strings.Contains(message, textTablet)),
		strings.HasPrefix(message, textBulk):
		return cluster.CongestedTable, tableIn(message)
	}
	return cluster.CongestedUnknown, ""
}

// tableIn is the path of the table that a message quotes; "": none.
func tableIn(message string) string {
	if rest, ok := strings.CutPrefix(message, textBulk); ok {
		name, _, _ := strings.Cut(rest, "'")
		return bounded(name)
	}
	_, rest, _ := strings.Cut(message, textTable)
	name, _, _ := strings.Cut(rest, "`")
	return bounded(name)
}

// word is the name that a message ends with, or that comes before a space.
func word(message string) string {
	name, _, _ := strings.Cut(message, " ")
	return bounded(name)
}

// maxSubject bounds the name of a table or of a resource pool, in bytes.
const maxSubject = 128

func bounded(name string) string {
	return strings.Clone(strings.ToValidUTF8(name[:min(len(name), maxSubject)], ""))
}
