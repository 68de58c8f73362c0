{{/* What no schema can say. */}}
{{- define "ydb-sidecar.check" -}}
{{- if not .Values.ydb.url }}
{{- fail "ydb.url is missing: set it to your database, as grpcs://host:2135/path/of/database or grpc://host:2136/path/of/database" }}
{{- end }}
{{- if not (regexMatch "^grpcs?://[^/?#@ ]+(/[^? ]+|/?\\?database=.+)$" .Values.ydb.url) }}
{{- fail (printf "ydb.url is %s; must be grpc[s]://host:port[,host:port]/database" .Values.ydb.url) }}
{{- end }}
{{- if get .Values "settings" }}
{{- fail "settings is called config now, and becomes a file that a running sidecar reads again: rename it" }}
{{- end }}
{{- $secrets := list "admin.token" "apps.token" "discovery.xds_token" "xds.token" "ydb.auth.oauth.subject_token" "ydb.auth.password" "ydb.auth.token" }}
{{- range $name, $value := include "ydb-sidecar.config" . | fromJson }}
{{- if has $name $secrets }}
{{- fail (printf "config: %s is a secret: use secretSettings, or secretFiles with the setting %s_file" $name $name) }}
{{- end }}
{{- if has $name (list "ydb.url" "admin.probes" "admin.probes_metrics" "admin.socket" "drain.delay") }}
{{- fail (printf "config: %s is set by the chart itself, from the values of its own" $name) }}
{{- end }}
{{- if and (eq $.Values.workload "daemonset") (has $name (list "grpc.socket" "http.socket")) }}
{{- fail (printf "config: %s is set by the chart itself, from hostSocket.path" $name) }}
{{- end }}
{{- if kindIs "slice" $value }}
{{- range $value }}
{{- if contains "," (regexReplaceAll "\\([^()]*\\)" . "") }}
{{- fail (printf "config: %s has the entry %s; an entry must have no comma, except between parentheses: make it two entries" $name .) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- range .Values.extraEnv }}
{{- if and (hasPrefix "SIDECAR_" .name) (not (get . "valueFrom")) }}
{{- fail (printf "extraEnv: %s is a setting: put it into config, or into secretSettings if it is a secret" .name) }}
{{- end }}
{{- end }}
{{- if and (has .Values.workload (list "deployment" "job")) (not .Values.app.containers) }}
{{- fail "app.containers is empty: name your app's container, or set workload to daemonset or none" }}
{{- end }}
{{- if and (eq .Values.workload "job") (eq .Values.layout "classic") }}
{{- fail "a job with layout classic would never be done, since the sidecar stays: use layout native" }}
{{- end }}
{{- end }}
