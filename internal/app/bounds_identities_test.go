package app

// identityLimits bound what is kept of identities and of names of callers.
var identityLimits = []limit{
	{"pools of identities", "../virtual/identity.go MaxPools", "",
		"the one unused for longest is closed, once its calls have ended", "`ydb.sidecar.virtual.pools`"},
	{"memory for each node that such a pool knows, of a sixteenth of the memory limit", "limits.go perPoolNode", "B",
		"where there is less, fewer pools: 16 at the least", "`ydb.sidecar.virtual.pools`"},
	{
		"a ticket of a call of YDB's protocol (header `x-ydb-auth-ticket`), where the sidecar keeps it: " +
			"`wire.auth=caller`, and not with `wire.mode=passthrough`",
		"../wire/caller.go mostTicket", "B", "UNAUTHORIZED. A node takes 16 KiB of headers in all", "",
	},
	{"the name of an app (`x-ydb-application-name`) or of a database (`x-ydb-database`) in such a call",
		"../wire/caller.go mostName", "B", "BAD_REQUEST", ""},
	{"a name in a client's certificate (`apps.users`)", "../apps/certificate.go maxCertificateName", "B",
		"it is no app's: an error in the setting, and not looked at in a certificate", ""},
	{"such names of one certificate", "../apps/certificate.go maxCertificateNames", "",
		"further ones are not looked at; URIs come first, then the common name, then DNS names", ""},
	{"tickets remembered", "../virtual/identity.go maxIdentities", "", "one is forgotten; it is asked about again", ""},
	{"questions whose a ticket is, at a time, of one connection each", "../virtual/identity.go maxAsks", "",
		"connections take turns", ""},
	{"such questions of one connection that wait", "../virtual/identity.go maxOfClient", "", "OVERLOADED", ""},
	{"such questions of all connections that wait behind the first of theirs", "../virtual/identity.go maxFurther",
		"", "OVERLOADED", ""},
	{"time for one such question", "../virtual/identity.go askTimeout", "ns", "UNAVAILABLE", ""},
}
