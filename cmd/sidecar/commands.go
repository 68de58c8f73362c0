package main

import (
	"net/http"
	"net/url"
)

// The tables of the commands, by group. Each text stands alone: it is shown without those around it.

const (
	lacksNode = "want the number of a node; sidecar nodes lists them"
	waitsFor  = "While it waits, it prints what it waits for every 3 seconds. "
)

func processCommands() []command {
	return []command{
		{
			name: "serve", group: groupProcess, flags: settingFlags, begin: serve,
			does: "Run the sidecar",
			more: "Prints one line of JSON with its addresses when it serves. Logs go to stderr. SIGTERM ends it in good order, " +
				"a second SIGTERM after a second or more ends it at once, and SIGHUP makes it read its settings again.",
			examples: []string{"serve -ydb grpc://ydb.example:2136/local", "serve -config /etc/ydb-sidecar/sidecar.yaml"},
		},
		{
			name: "wait", group: groupProcess, flags: sidecarFlags, begin: wait,
			does:     "Wait until a sidecar has started",
			more:     "Exits with 0 as soon as the sidecar has started. Use it before the app starts.",
			examples: []string{"wait -timeout 30s", "wait -deep"},
		},
		{
			name: "top", group: groupProcess, flags: sidecarFlags, begin: top,
			does:     "Show status, calls, pool, queue, nodes and apps, again and again",
			more:     "Refreshes until you interrupt it. Prints once if the output is not a terminal.",
			examples: []string{"top", "top -n 1"},
		},
		{
			name: "findings", group: groupProcess, flags: sidecarFlags, begin: look("/state/findings", showFindings),
			does:     "Show what is wrong, and what to do about it",
			examples: []string{"findings"},
		},
		{
			name: "drain", group: groupProcess, flags: sidecarFlags, begin: drain,
			does: "Stop a sidecar in good order, or make it not ready (-lameduck)",
			more: "New calls are rejected, and open calls and transactions may finish for drain.grace, as after SIGTERM. " +
				"At a terminal it asks before it stops the sidecar; -yes answers. " + waitsFor +
				"-lameduck does not stop the sidecar, and neither it nor -off goes with another flag.",
			examples: []string{"drain -wait", "drain -wait -timeout 10s -yes", "drain -lameduck", "drain -off"},
		},
		{
			name: "shutdown", group: groupProcess, flags: sidecarFlags, begin: shutdown,
			does:     "Stop a sidecar in good order and wait until it has stopped",
			more:     "Does what sidecar drain -wait does. At a terminal it asks first; -yes answers. " + waitsFor,
			examples: []string{"shutdown", "shutdown -yes -timeout 10s"},
		},
		{
			name: "log-level", group: groupProcess, flags: sidecarFlags, begin: logLevel,
			does:     "Change the level of the log until the next restart",
			examples: []string{"log-level -level DEBUG", "log-level -level INFO"},
		},
	}
}

// aboutCommands are the commands of the process group that concern the program itself.
func aboutCommands() []command {
	return []command{
		{
			name: "version", group: groupProcess, begin: printVersion,
			does:     "Print the versions of the sidecar and of Go, the commit and the platform",
			more:     "The flag --version of sidecar prints the same.",
			examples: []string{"version"},
		},
		{
			name: "completion", group: groupProcess, begin: printCompletion, args: "SHELL", lacks: "want bash, zsh or fish",
			does: "Print a script that completes commands and flags in a shell",
			more: "SHELL is bash, zsh or fish. Load the script from your shell's startup file.",
			examples: []string{
				`completion bash >/etc/bash_completion.d/sidecar`,
				`completion zsh >"${fpath[1]}/_sidecar"`,
				`completion fish >~/.config/fish/completions/sidecar.fish`,
			},
		},
		{
			name: "help", group: groupProcess, begin: help, args: "[COMMAND]",
			does:     "List the commands, or explain one",
			examples: []string{"help", "help ban"},
		},
	}
}

func configCommands() []command {
	return []command{
		{
			name: "check-config", group: groupConfig, flags: settingFlags, begin: checkConfig,
			does:     "Check the settings and list every fault",
			more:     "Reads the file, the environment and the flags, as sidecar serve does. Exits with 1 if there is a fault.",
			examples: []string{"check-config -config sidecar.yaml", "check-config -print"},
		},
		{
			name: "doctor", group: groupConfig, flags: settingFlags, begin: examine,
			does: "Check each step from the host name of the cluster to a query",
			more: "Each failed step says what to do. The last line is about the sidecar that runs with the same settings, if one does. " +
				"Exits with 1 if a step fails.",
			examples: []string{"doctor -ydb grpcs://ydb.example:2135/prod/shop", "doctor -config sidecar.yaml -json"},
		},
		{
			name: "reload", group: groupConfig, flags: sidecarFlags, begin: reload,
			does:     "Make a running sidecar read its settings again",
			more:     "Lists what has changed, and what takes effect only after a restart. Nothing changes if a setting is faulty.",
			examples: []string{"reload -dry-run", "reload"},
		},
	}
}

func nodeCommands() []command {
	return []command{
		{
			name: "nodes", group: groupNodes, flags: sidecarFlags, begin: listNodes,
			does:     "List the nodes with state, sessions, calls and latency",
			examples: []string{"nodes", "nodes -json"},
		},
		{
			name: "why", group: groupNodes, flags: sidecarFlags, begin: why, args: "NODE", lacks: lacksNode,
			does:     "Explain the state of a node: its errors, latency and probes against their limits",
			examples: []string{"why 2"},
		},
		{
			name: "ban", group: groupNodes, flags: sidecarFlags, begin: ban, args: "NODE", lacks: lacksNode,
			does:     "Keep new work off a node",
			more:     "Open transactions on the node go on. The ban ends with sidecar unban, after -for, or when the sidecar stops.",
			examples: []string{`ban 2 -for 10m -reason "disk is slow"`, "ban 2"},
		},
		{
			name: "unban", group: groupNodes, flags: sidecarFlags, begin: onNode("unban"), args: "NODE", lacks: lacksNode,
			does:     "End the ban of a node",
			examples: []string{"unban 2"},
		},
		{
			name: "drain-node", group: groupNodes, flags: sidecarFlags, begin: onNode("drain"), args: "NODE", lacks: lacksNode,
			does:     "Empty a node of sessions",
			more:     "The node gets no new sessions, and its sessions close when their calls and transactions end.",
			examples: []string{"drain-node 2"},
		},
		{
			name: "undrain-node", group: groupNodes, flags: sidecarFlags, begin: onNode("undrain"), args: "NODE", lacks: lacksNode,
			does:     "Use a drained node again",
			examples: []string{"undrain-node 2"},
		},
		{
			name: "events", group: groupNodes, flags: sidecarFlags, begin: events,
			does:     "List what happened to nodes",
			examples: []string{"events", "events -follow"},
		},
	}
}

func poolCommands() []command {
	return []command{
		{
			name: "pools", group: groupPool, flags: sidecarFlags, begin: listPools,
			does:     "List the pools with their active, waiting and idle sessions",
			examples: []string{"pools"},
		},
		{
			name: "queue", group: groupPool, flags: sidecarFlags, begin: look("/state/queue", showQueue),
			does:     "List the callers that wait for a session, by class and app",
			examples: []string{"queue"},
		},
		{
			name: "resize", group: groupPool, flags: sidecarFlags, begin: resize,
			does:     "Change the size of the pool until a reload changes its settings, or the sidecar ends",
			examples: []string{"resize -max 50 -min 5"},
		},
		{
			name: "pause", group: groupPool, flags: sidecarFlags, begin: pause,
			does: "Make calls of every API wait until sidecar resume",
			more: "Calls that wait keep their deadlines. With -wait it returns when nothing is under way at any node: then YDB may be " +
				"maintained. " + waitsFor,
			examples: []string{"pause", "pause -wait -timeout 30s"},
		},
		{
			name: "resume", group: groupPool, flags: sidecarFlags,
			begin:    order("/pool/resume", sayPool),
			does:     "Let paused calls go on",
			examples: []string{"resume"},
		},
	}
}

func sessionCommands() []command {
	return []command{
		{
			name: "sessions", group: groupSessions, flags: sidecarFlags, begin: listSessions,
			does:     "List the sessions in use: app, node, time held, trace",
			examples: []string{"sessions", "sessions -idle -n 1000"},
		},
		{
			name: "kill", group: groupSessions, flags: sidecarFlags, begin: kill, args: "SESSION",
			lacks:    "want the short hash of a session; sidecar sessions lists them",
			does:     "Delete a session, even while a caller uses it",
			more:     "The caller's transaction is rolled back.",
			examples: []string{"kill 3f9a2c71"},
		},
	}
}

func callCommands() []command {
	return []command{
		{
			name: "calls", group: groupCalls, flags: sidecarFlags, begin: listCalls,
			does:     "List the calls that are under way or wait, the oldest first",
			examples: []string{"calls", "calls -app shop -min 1s"},
		},
		{
			name: "kill-call", group: groupCalls, flags: sidecarFlags, begin: killCall, args: "CALL",
			lacks:    "want a trace id, or the name of a call; sidecar calls lists them",
			does:     "End one call, or all calls of a trace",
			more:     "CALL is a trace id, or a name from the column CALL of sidecar calls.",
			examples: []string{"kill-call 0af7651916cd43dd8448eb211c80319c"},
		},
		{
			name: "statements", group: groupCalls, flags: sidecarFlags, begin: listStatements,
			does:     "List statements by digest: calls, errors, rows, bytes, times",
			examples: []string{"statements", "statements -by errors -start"},
		},
	}
}

// order is a command that posts to one path and says what came of it.
func order(path string, say shower) func(*invocation) func() error {
	return func(i *invocation) func() error {
		return func() error { return i.post(path, nil, say) }
	}
}

// post sends one order and says what came of it.
func (i *invocation) post(path string, query url.Values, say shower) error {
	text, err := i.askOnce(http.MethodPost, path, query)
	if err != nil {
		return err
	}
	return say(i.stdout, text)
}
