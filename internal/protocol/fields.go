package protocol

// What the scans of requests and answers look for. TestFieldsAreThoseOfTheProtos compares the numbers.
var (
	txControl = fields(want{number: 1, what: wantTx}, want{number: 2, what: wantBegin}, want{number: 10, what: wantCommit})
	metaID    = fields(want{number: 1, what: wantMetaTx})

	sessionFirst  = fields(want{number: 1, what: wantSession})
	sessionSecond = fields(want{number: 2, what: wantSession})
	sessionAndTx  = fields(want{number: 1, what: wantSession}, want{number: 2, what: wantTx})

	executeQuery = fields(want{number: 1, what: wantSession}, want{number: 3, what: wantMessage, in: txControl},
		want{number: 4, what: wantMessage, in: fields(want{number: 1, what: wantSyntax}, want{number: 2, what: wantText})})
	executeDataQuery = fields(want{number: 1, what: wantSession}, want{number: 2, what: wantMessage, in: txControl},
		want{number: 3, what: wantMessage,
			in: fields(want{number: 1, what: wantText, oneof: 2}, want{number: 2, what: wantOnce, oneof: 1})})
	sessionAndText = fields(want{number: 1, what: wantSession}, want{number: 2, what: wantText})
	topicOffsets   = fields(
		want{number: 2, what: wantMessage, in: fields(want{number: 1, what: wantTx}, want{number: 2, what: wantSession})},
	)

	plainStatus      = fields(want{number: 1, what: wantStatus})
	plainMeta3       = fields(want{number: 1, what: wantStatus}, want{number: 3, what: wantMeta, in: metaID})
	plainMeta6       = fields(want{number: 1, what: wantStatus}, want{number: 6, what: wantMeta, in: metaID})
	operationStatus  = fields(want{number: 1, what: wantMessage, in: fields(want{number: 3, what: wantStatus})})
	operationMeta1   = operationMeta(1)
	operationMeta2   = operationMeta(2)
	operationQueryID = operationResult(fields(want{number: 1, what: wantQueryID}))
	bareStatus       = fields(want{number: 3, what: wantStatus})
	noStatus         = fields()
)

// operationMeta finds the transaction in operation.result, an Any, and in that the field
// tx_meta of such a number.
func operationMeta(number uint32) *Fields {
	return operationResult(fields(want{number: number, what: wantMeta, in: metaID}))
}

func operationResult(result *Fields) *Fields {
	return fields(want{number: 1, what: wantMessage, in: fields(
		want{number: 3, what: wantStatus},
		want{number: 5, what: wantMessage, in: fields(want{number: 2, what: wantMessage, in: result})})})
}
