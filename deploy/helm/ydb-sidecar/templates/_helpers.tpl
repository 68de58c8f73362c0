{{- define "ydb-sidecar.name" -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end }}

{{- define "ydb-sidecar.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "ydb-sidecar.labels" -}}
{{ include "ydb-sidecar.selector" . }}
app.kubernetes.io/version: {{ .Values.image.tag | default .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "ydb-sidecar.variable" -}}
{{ printf "SIDECAR_%s" (. | upper | replace "." "_") }}
{{- end }}

{{/* The value of a setting as the text of a variable. Helm reads a number of YAML as a float, which prints 1000000 as
1e+06, and on as true: that does for a switch, but not for a word such as off. A kubelet makes $ of $$. */}}
{{- define "ydb-sidecar.value" -}}
{{- if kindIs "slice" . -}}
{{- $items := list -}}
{{- range . }}{{ $items = append $items (include "ydb-sidecar.scalar" .) }}{{ end -}}
{{- join "," $items | replace "$" "$$" -}}
{{- else -}}
{{- include "ydb-sidecar.scalar" . | replace "$" "$$" -}}
{{- end -}}
{{- end }}

{{- define "ydb-sidecar.scalar" -}}
{{- if kindIs "bool" . -}}
{{- ternary "on" "off" . -}}
{{- else if and (kindIs "float64" .) (eq (floor .) .) -}}
{{- printf "%.0f" . -}}
{{- else -}}
{{- toString . -}}
{{- end -}}
{{- end }}

{{/* The seconds of a duration such as 1m30s, rounded up. */}}
{{- define "ydb-sidecar.seconds" -}}
{{- $epoch := toDate "2006-01-02 MST" "2000-01-01 UTC" -}}
{{- sub (mustDateModify "999ms" (mustDateModify (include "ydb-sidecar.scalar" .) $epoch) | unixEpoch) ($epoch | unixEpoch) -}}
{{- end }}

{{/* The sidecar's container. kind: native, classic or daemonset. Takes (dict "root" $ "kind" "native"). */}}
{{- define "ydb-sidecar.container" -}}
{{- $v := .root.Values -}}
{{- if and (eq .kind "native") (semverCompare "<1.29.0-0" .root.Capabilities.KubeVersion.Version) -}}
{{- fail (printf "Kubernetes is %s; layout native needs 1.29 or later, before which a pod would wait forever for the sidecar to end: set layout to classic" .root.Capabilities.KubeVersion.Version) -}}
{{- end -}}
name: ydb-sidecar
{{- if $v.image.digest }}
image: {{ printf "%s@%s" $v.image.repository $v.image.digest }}
{{- else }}
image: {{ printf "%s:%s" $v.image.repository ($v.image.tag | default .root.Chart.AppVersion) }}
{{- end }}
imagePullPolicy: {{ $v.image.pullPolicy }}
{{- if eq .kind "native" }}
restartPolicy: Always
{{- end }}
args: [serve]
env:
  - name: SIDECAR_YDB_URL
    value: {{ include "ydb-sidecar.value" $v.ydb.url | quote }}
  - name: SIDECAR_ADMIN_PROBES
    value: "0.0.0.0:7404"
  {{- if $v.metrics.enabled }}
  - name: SIDECAR_ADMIN_PROBES_METRICS
    value: "on"
  {{- end }}
  {{- if eq .kind "daemonset" }}
  - name: SIDECAR_HTTP_SOCKET
    value: {{ printf "%s/http.sock" $v.hostSocket.path | quote }}
  {{- else }}
  - name: SIDECAR_ADMIN_SOCKET
    value: /run/ydb-sidecar/own/admin
  {{- end }}
  {{- if eq .kind "native" }}
  {{- if not (hasKey $v.settings "drain.idle") }}
  - name: SIDECAR_DRAIN_IDLE
    value: 2s
  {{- end }}
  {{- else }}
  - name: SIDECAR_DRAIN_DELAY
    value: {{ printf "%ds" (int $v.drain.delaySeconds) | quote }}
  {{- end }}
  {{- range $name, $value := $v.settings }}
  - name: {{ include "ydb-sidecar.variable" $name }}
    value: {{ include "ydb-sidecar.value" $value | quote }}
  {{- end }}
  {{- range $v.secretSettings }}
  - name: {{ include "ydb-sidecar.variable" .setting }}
    valueFrom:
      secretKeyRef: {name: {{ .secret | quote }}, key: {{ .key | quote }}}
  {{- end }}
  {{- range $v.secretFiles }}
  - name: {{ include "ydb-sidecar.variable" .setting }}
    value: {{ printf "/etc/ydb-sidecar/%s/%s" .secret .key | quote }}
  {{- end }}
ports:
  - {name: probes, containerPort: 7404}
startupProbe:
  httpGet: {path: /startupz, port: probes}
  periodSeconds: 1
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /livez, port: probes}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
{{- if eq .kind "native" }}
lifecycle:
  preStop:
    exec: {command: [/sidecar, drain, -lameduck]}
{{- end }}
resources:
  {{- toYaml $v.resources | nindent 2 }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  readOnlyRootFilesystem: true
  allowPrivilegeEscalation: false
  capabilities: {drop: [ALL]}
  seccompProfile: {type: RuntimeDefault}
volumeMounts:
  - name: ydb-sidecar
    mountPath: {{ if eq .kind "daemonset" }}{{ $v.hostSocket.path | quote }}{{ else }}/run/ydb-sidecar{{ end }}
  {{- range include "ydb-sidecar.secrets" .root | fromJsonArray }}
  - name: {{ printf "ydb-sidecar-%s" . | trunc 63 | quote }}
    mountPath: {{ printf "/etc/ydb-sidecar/%s" . | quote }}
    readOnly: true
  {{- end }}
{{- end }}

{{/* The names of the Secrets that are mounted. */}}
{{- define "ydb-sidecar.secrets" -}}
{{- $names := list -}}
{{- range .Values.secretFiles }}{{ $names = append $names .secret }}{{ end -}}
{{- $names | uniq | toJson -}}
{{- end }}

{{/* The volumes that the container needs. Takes the same as it. */}}
{{- define "ydb-sidecar.volumes" -}}
- name: ydb-sidecar
  {{- if eq .kind "daemonset" }}
  hostPath: {path: {{ .root.Values.hostSocket.path | quote }}, type: DirectoryOrCreate}
  {{- else }}
  emptyDir: {medium: Memory, sizeLimit: 1Mi}
  {{- end }}
{{- range include "ydb-sidecar.secrets" .root | fromJsonArray }}
- name: {{ printf "ydb-sidecar-%s" . | trunc 63 | quote }}
  secret: {secretName: {{ . | quote }}, defaultMode: 0444}
{{- end }}
{{- end }}

{{/* The pod of an app. */}}
{{- define "ydb-sidecar.pod" -}}
{{- $it := dict "root" . "kind" .Values.layout -}}
metadata:
  labels:
    {{- include "ydb-sidecar.selector" . | nindent 4 }}
    {{- with .Values.app.labels }}{{ toYaml . | nindent 4 }}{{ end }}
  {{- with merge (deepCopy .Values.podAnnotations) .Values.app.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  {{- if eq .Values.workload "job" }}
  restartPolicy: Never
  {{- end }}
  terminationGracePeriodSeconds: {{ .Values.drain.terminationGracePeriodSeconds }}
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if eq .Values.layout "native" }}
  initContainers:
    -
      {{- include "ydb-sidecar.container" $it | nindent 6 }}
  {{- end }}
  containers:
    {{- if eq .Values.layout "classic" }}
    -
      {{- include "ydb-sidecar.container" $it | nindent 6 }}
    {{- end }}
    {{- toYaml .Values.app.containers | nindent 4 }}
  volumes:
    {{- include "ydb-sidecar.volumes" $it | nindent 4 }}
    {{- with .Values.app.volumes }}{{ toYaml . | nindent 4 }}{{ end }}
  {{- with .Values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}

{{/* What no schema can say. */}}
{{- define "ydb-sidecar.check" -}}
{{- if not .Values.ydb.url }}
{{- fail "ydb.url is missing: set it to your database, as grpcs://host:2135/path/of/database or grpc://host:2136/path/of/database" }}
{{- end }}
{{- if not (regexMatch "^grpcs?://[^/?#@ ]+(/[^? ]+|/?\\?database=.+)$" .Values.ydb.url) }}
{{- fail (printf "ydb.url is %s; must be grpc[s]://host:port[,host:port]/database" .Values.ydb.url) }}
{{- end }}
{{- range $name, $value := .Values.settings }}
{{- if has $name (list "admin.token" "apps.token" "discovery.xds_token" "xds.token" "ydb.auth.oauth.subject_token" "ydb.auth.password" "ydb.auth.token") }}
{{- fail (printf "settings: %s is a secret: use secretSettings, or secretFiles with the setting %s_file" $name $name) }}
{{- end }}
{{- if has $name (list "ydb.url" "admin.probes" "admin.probes_metrics" "admin.socket" "grpc.socket" "http.socket" "drain.delay") }}
{{- fail (printf "settings: %s is set by the chart itself, from the values of its own" $name) }}
{{- end }}
{{- if kindIs "slice" $value }}
{{- range $value }}
{{- if contains "," (regexReplaceAll "\\([^()]*\\)" (toString .) "") }}
{{- fail (printf "settings: %s has the entry %s; an entry must have no comma, except between parentheses: make it two entries" $name (toString .)) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- if and (has .Values.workload (list "deployment" "job")) (not .Values.app.containers) }}
{{- fail "app.containers is empty: name your app's container, or set workload to daemonset or none" }}
{{- end }}
{{- if and (eq .Values.workload "job") (eq .Values.layout "classic") }}
{{- fail "a job with layout classic would never be done, since the sidecar stays: use layout native" }}
{{- end }}
{{- $grace := include "ydb-sidecar.seconds" (ternary (get .Values.settings "drain.grace") "25s" (hasKey .Values.settings "drain.grace")) | int }}
{{- $delay := 0 }}
{{- if or (eq .Values.layout "classic") (eq .Values.workload "daemonset") }}{{ $delay = int .Values.drain.delaySeconds }}{{ end }}
{{- $needs := add $grace $delay 5 | int }}
{{- if and (ne .Values.workload "none") (lt (int .Values.drain.terminationGracePeriodSeconds) $needs) }}
{{- fail (printf "drain.terminationGracePeriodSeconds is %d; must be at least %d: settings.drain.grace (%d s), drain.delaySeconds (%d s, of classic and daemonset) and 5 s" (int .Values.drain.terminationGracePeriodSeconds) $needs $grace $delay) }}
{{- end }}
{{- if and (or .Values.metrics.podMonitor) (not .Values.metrics.enabled) }}
{{- fail "metrics.podMonitor needs metrics.enabled" }}
{{- end }}
{{- end }}
