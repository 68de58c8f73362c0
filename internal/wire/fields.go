package wire

// What the scans of requests and answers look for.
var (
	txControl = fields(want{number: 1, what: wantTx}, want{number: 2, what: wantBegin}, want{number: 10, what: wantCommit})
	metaID    = fields(want{number: 1, what: wantMetaTx})

	sessionFirst  = fields(want{number: 1, what: wantSession})
	sessionSecond = fields(want{number: 2, what: wantSession})
	sessionAndTx  = fields(want{number: 1, what: wantSession}, want{number: 2, what: wantTx})

	executeQuery     = fields(want{number: 1, what: wantSession}, want{number: 3, what: wantMessage, in: txControl}, want{number: 4, what: wantMessage, in: fields(want{number: 2, what: wantText})})
	executeDataQuery = fields(want{number: 1, what: wantSession}, want{number: 2, what: wantMessage, in: txControl}, want{number: 3, what: wantMessage, in: fields(want{number: 1, what: wantText})})
	executeScheme    = fields(want{number: 1, what: wantSession}, want{number: 2, what: wantText})
	topicOffsets     = fields(want{number: 2, what: wantMessage, in: fields(want{number: 1, what: wantTx}, want{number: 2, what: wantSession})})

	plainStatus     = fields(want{number: 1, what: wantStatus})
	plainMeta3      = fields(want{number: 1, what: wantStatus}, want{number: 3, what: wantMeta, in: metaID})
	plainMeta6      = fields(want{number: 1, what: wantStatus}, want{number: 6, what: wantMeta, in: metaID})
	operationStatus = fields(want{number: 1, what: wantMessage, in: fields(want{number: 3, what: wantStatus})})
	operationMeta1  = operationMeta(1)
	operationMeta2  = operationMeta(2)
	bareStatus      = fields(want{number: 3, what: wantStatus})
	statusOfStyle   = [...]*wanted{styleNone: fields(), stylePlain: plainStatus, styleOperation: operationStatus, styleBare: bareStatus}
	requestsByName  = map[string]*wanted{
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
	answersByName = map[string]*wanted{
		"/Ydb.Query.V1.QueryService/ExecuteQuery":     plainMeta6,
		"/Ydb.Query.V1.QueryService/BeginTransaction": plainMeta3,
		"/Ydb.Table.V1.TableService/ExecuteDataQuery": operationMeta2,
		"/Ydb.Table.V1.TableService/PrepareDataQuery": operationResult(fields(want{number: 1, what: wantQueryID})),
		"/Ydb.Table.V1.TableService/BeginTransaction": operationMeta1,
	}
)

// operationMeta finds the transaction in operation.result, an Any, and in that the field
// tx_meta of such a number.
func operationMeta(number uint32) *wanted {
	return operationResult(fields(want{number: number, what: wantMeta, in: metaID}))
}

func operationResult(result *wanted) *wanted {
	return fields(want{number: 1, what: wantMessage, in: fields(
		want{number: 3, what: wantStatus},
		want{number: 5, what: wantMessage, in: fields(want{number: 2, what: wantMessage, in: result})})})
}

// requestFields are those looked for in requests of a method on a session.
func (m *Method) requestFields() *wanted {
	if w, ok := requestsByName[m.Path]; ok {
		return w
	}
	return sessionFirst
}

// answerFields are those looked for in answers.
func (m *Method) answerFields() *wanted {
	if w, ok := answersByName[m.Path]; ok {
		return w
	}
	return statusOfStyle[m.style]
}
