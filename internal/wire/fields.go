package wire

// What the scans of requests and answers look for.
var (
	txControl = []want{{number: 1, what: wantTx}, {number: 2, what: wantBegin}, {number: 10, what: wantCommit}}
	metaID    = []want{{number: 1, what: wantMetaTx}}

	sessionFirst  = []want{{number: 1, what: wantSession}}
	sessionSecond = []want{{number: 2, what: wantSession}}
	sessionAndTx  = []want{{number: 1, what: wantSession}, {number: 2, what: wantTx}}

	executeQuery     = []want{{number: 1, what: wantSession}, {number: 3, what: wantMessage, in: txControl}, {number: 4, what: wantMessage, in: []want{{number: 2, what: wantText}}}}
	executeDataQuery = []want{{number: 1, what: wantSession}, {number: 2, what: wantMessage, in: txControl}, {number: 3, what: wantMessage, in: []want{{number: 1, what: wantText}}}}
	executeScheme    = []want{{number: 1, what: wantSession}, {number: 2, what: wantText}}
	topicOffsets     = []want{{number: 2, what: wantMessage, in: []want{{number: 1, what: wantTx}, {number: 2, what: wantSession}}}}

	plainStatus     = []want{{number: 1, what: wantStatus}}
	plainMeta3      = []want{{number: 1, what: wantStatus}, {number: 3, what: wantMeta, in: metaID}}
	plainMeta6      = []want{{number: 1, what: wantStatus}, {number: 6, what: wantMeta, in: metaID}}
	operationStatus = []want{{number: 1, what: wantMessage, in: []want{{number: 3, what: wantStatus}}}}
	operationMeta1  = operationMeta(1)
	operationMeta2  = operationMeta(2)
	bareStatus      = []want{{number: 3, what: wantStatus}}
	statusOfStyle   = [...][]want{styleNone: nil, stylePlain: plainStatus, styleOperation: operationStatus, styleBare: bareStatus}
	requestsByName  = map[string][]want{
		"/Ydb.Query.V1.QueryService/ExecuteQuery":               executeQuery,
		"/Ydb.Query.V1.QueryService/CommitTransaction":          sessionAndTx,
		"/Ydb.Query.V1.QueryService/RollbackTransaction":        sessionAndTx,
		"/Ydb.Table.V1.TableService/ExecuteDataQuery":           executeDataQuery,
		"/Ydb.Table.V1.TableService/ExecuteSchemeQuery":         executeScheme,
		"/Ydb.Table.V1.TableService/CommitTransaction":          sessionAndTx,
		"/Ydb.Table.V1.TableService/RollbackTransaction":        sessionAndTx,
		"/Ydb.Table.V1.TableService/CopyTables":                 sessionSecond,
		"/Ydb.Table.V1.TableService/RenameTables":               sessionSecond,
		"/Ydb.Topic.V1.TopicService/UpdateOffsetsInTransaction": topicOffsets,
	}
	answersByName = map[string][]want{
		"/Ydb.Query.V1.QueryService/ExecuteQuery":     plainMeta6,
		"/Ydb.Query.V1.QueryService/BeginTransaction": plainMeta3,
		"/Ydb.Table.V1.TableService/ExecuteDataQuery": operationMeta2,
		"/Ydb.Table.V1.TableService/PrepareDataQuery": operationResult([]want{{number: 1, what: wantQueryID}}),
		"/Ydb.Table.V1.TableService/BeginTransaction": operationMeta1,
	}
)

// operationMeta finds the transaction in operation.result, an Any, and in that the field
// tx_meta of such a number.
func operationMeta(number uint32) []want {
	return operationResult([]want{{number: number, what: wantMeta, in: metaID}})
}

func operationResult(result []want) []want {
	return []want{{number: 1, what: wantMessage, in: []want{
		{number: 3, what: wantStatus},
		{number: 5, what: wantMessage, in: []want{{number: 2, what: wantMessage, in: result}}},
	}}}
}

// requestFields are those looked for in requests of a method on a session.
func (m *Method) requestFields() []want {
	if w, ok := requestsByName[m.Path]; ok {
		return w
	}
	return sessionFirst
}

// answerFields are those looked for in answers.
func (m *Method) answerFields() []want {
	if w, ok := answersByName[m.Path]; ok {
		return w
	}
	return statusOfStyle[m.style]
}
