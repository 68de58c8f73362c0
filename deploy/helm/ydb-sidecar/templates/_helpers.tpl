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

{{/* The sidecar's container. kind: native, classic or daemonset. Takes (dict "root" $ "kind" "native"). */}}
{{- define "ydb-sidecar.container" -}}
{{- $v := .root.Values -}}
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
    value: {{ $v.ydb.url | quote }}
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
    value: {{ $value | toString | quote }}
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
{{- range $name, $_ := .Values.settings }}
{{- if has $name (list "ydb.auth.token" "ydb.auth.password" "ydb.auth.oauth.subject_token" "admin.token" "apps.token") }}
{{- fail (printf "settings: %s is a secret: use secretSettings, or secretFiles with the setting %s_file" $name $name) }}
{{- end }}
{{- if has $name (list "ydb.url" "admin.probes" "admin.probes_metrics" "admin.socket" "http.socket" "drain.delay") }}
{{- fail (printf "settings: %s is set by the chart itself, from the values of its own" $name) }}
{{- end }}
{{- end }}
{{- if and (has .Values.workload (list "deployment" "job")) (not .Values.app.containers) }}
{{- fail "app.containers is empty: name your app's container, or set workload to daemonset or none" }}
{{- end }}
{{- if and (eq .Values.workload "job") (eq .Values.layout "classic") }}
{{- fail "a job with layout classic would never be done, since the sidecar stays: use layout native" }}
{{- end }}
{{- $needs := 30 }}
{{- if or (eq .Values.layout "classic") (eq .Values.workload "daemonset") }}{{ $needs = add 30 .Values.drain.delaySeconds }}{{ end }}
{{- if lt (int .Values.drain.terminationGracePeriodSeconds) (int $needs) }}
{{- fail (printf "drain.terminationGracePeriodSeconds is %d; must be at least %d: the sidecar's drain.grace (25 s), drain.delaySeconds (classic and daemonset) and 5 s" (int .Values.drain.terminationGracePeriodSeconds) (int $needs)) }}
{{- end }}
{{- if and (or .Values.metrics.podMonitor) (not .Values.metrics.enabled) }}
{{- fail "metrics.podMonitor needs metrics.enabled" }}
{{- end }}
{{- end }}
