package devcluster

// handlers lists the methods that are supported, by full name.
//
// Long: it is one table, a line for each method.
func handlers() map[string]handler {
	return map[string]handler{
		"/Ydb.Discovery.V1.DiscoveryService/ListEndpoints": operation(listEndpoints),
		"/Ydb.Discovery.V1.DiscoveryService/WhoAmI":        operation(whoAmI),

		"/Ydb.Auth.V1.AuthService/Login": operation(login),

		"/Ydb.Query.V1.QueryService/CreateSession":       plain(createQuerySession),
		"/Ydb.Query.V1.QueryService/DeleteSession":       plain(deleteQuerySession),
		"/Ydb.Query.V1.QueryService/AttachSession":       streaming(attachSession),
		"/Ydb.Query.V1.QueryService/BeginTransaction":    plain(beginQuery),
		"/Ydb.Query.V1.QueryService/CommitTransaction":   plain(commitQuery),
		"/Ydb.Query.V1.QueryService/RollbackTransaction": plain(rollbackQuery),
		"/Ydb.Query.V1.QueryService/ExecuteQuery":        streaming(executeQuery),

		"/Ydb.Query.V1.QueryService/ExecuteScript":      plain(executeScript),
		"/Ydb.Query.V1.QueryService/FetchScriptResults": plain(fetchScriptResults),

		"/Ydb.Table.V1.TableService/CreateSession":          operation(createTableSession),
		"/Ydb.Table.V1.TableService/DeleteSession":          operation(deleteTableSession),
		"/Ydb.Table.V1.TableService/KeepAlive":              operation(keepAlive),
		"/Ydb.Table.V1.TableService/BeginTransaction":       operation(beginTable),
		"/Ydb.Table.V1.TableService/CommitTransaction":      operation(commitTable),
		"/Ydb.Table.V1.TableService/RollbackTransaction":    operation(rollbackTable),
		"/Ydb.Table.V1.TableService/ExecuteDataQuery":       operation(executeDataQuery),
		"/Ydb.Table.V1.TableService/ExecuteSchemeQuery":     operation(executeSchemeQuery),
		"/Ydb.Table.V1.TableService/ExplainDataQuery":       operation(explainDataQuery),
		"/Ydb.Table.V1.TableService/PrepareDataQuery":       operation(prepareDataQuery),
		"/Ydb.Table.V1.TableService/CreateTable":            operation(createTable),
		"/Ydb.Table.V1.TableService/DropTable":              operation(dropTable),
		"/Ydb.Table.V1.TableService/AlterTable":             operation(alterTable),
		"/Ydb.Table.V1.TableService/CopyTable":              operation(copyTable),
		"/Ydb.Table.V1.TableService/CopyTables":             operation(copyTables),
		"/Ydb.Table.V1.TableService/RenameTables":           operation(renameTables),
		"/Ydb.Table.V1.TableService/DescribeTableOptions":   operation(describeTableOptions),
		"/Ydb.Table.V1.TableService/DescribeTable":          operation(describeTable),
		"/Ydb.Table.V1.TableService/BulkUpsert":             operation(bulkUpsert),
		"/Ydb.Table.V1.TableService/ReadRows":               plain(readRows),
		"/Ydb.Table.V1.TableService/StreamReadTable":        streaming(streamReadTable),
		"/Ydb.Table.V1.TableService/StreamExecuteScanQuery": streaming(streamScanQuery),

		"/Ydb.Scheme.V1.SchemeService/MakeDirectory":   operation(makeDirectory),
		"/Ydb.Scheme.V1.SchemeService/RemoveDirectory": operation(removeDirectory),
		"/Ydb.Scheme.V1.SchemeService/ListDirectory":   operation(listDirectory),
		"/Ydb.Scheme.V1.SchemeService/DescribePath":    operation(describePath),

		"/Ydb.Scripting.V1.ScriptingService/ExecuteYql":       operation(executeYql),
		"/Ydb.Scripting.V1.ScriptingService/StreamExecuteYql": streaming(streamExecuteYql),
		"/Ydb.Scripting.V1.ScriptingService/ExplainYql":       operation(explainYql),

		"/Ydb.Topic.V1.TopicService/CreateTopic":                operation(createTopic),
		"/Ydb.Topic.V1.TopicService/AlterTopic":                 operation(alterTopic),
		"/Ydb.Topic.V1.TopicService/DropTopic":                  operation(dropTopic),
		"/Ydb.Topic.V1.TopicService/DescribeTopic":              operation(describeTopic),
		"/Ydb.Topic.V1.TopicService/DescribeConsumer":           operation(describeConsumer),
		"/Ydb.Topic.V1.TopicService/CommitOffset":               operation(commitOffset),
		"/Ydb.Topic.V1.TopicService/UpdateOffsetsInTransaction": operation(updateOffsets),
		"/Ydb.Topic.V1.TopicService/StreamWrite":                streamWrite,
		"/Ydb.Topic.V1.TopicService/StreamRead":                 streamRead,

		"/Ydb.Operation.V1.OperationService/GetOperation":    getOperation,
		"/Ydb.Operation.V1.OperationService/CancelOperation": plain(cancelOperation),
		"/Ydb.Operation.V1.OperationService/ForgetOperation": plain(forgetOperation),
		"/Ydb.Operation.V1.OperationService/ListOperations":  plain(listOperations),
	}
}
