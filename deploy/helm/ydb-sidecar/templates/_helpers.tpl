{{/* Name of the objects. */}}
{{- define "ydb-sidecar.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- list .Release.Name .Values.nameOverride | compact | join "-" | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{- define "ydb-sidecar.selector" -}}
app.kubernetes.io/name: {{ .Values.nameOverride | default .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "ydb-sidecar.labels" -}}
{{ include "ydb-sidecar.selector" . }}
app.kubernetes.io/version: {{ .Values.image.tag | default .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The label by which the PodMonitor of the chart ydb-sidecar-monitoring finds pods with a sidecar. Takes the same as
the container. */}}
{{- define "ydb-sidecar.podLabels" -}}
{{- if .root.Values.metrics.enabled -}}
ydb-sidecar/metrics: "true"
{{- end -}}
{{- end }}

{{/* The settings of config, which may be nested or have dots, as JSON: full name to text or to a list of texts. */}}
{{- define "ydb-sidecar.flat" -}}
{{- $out := dict -}}
{{- range $key, $value := .in -}}
{{- $name := printf "%s%s" $.at $key -}}
{{- $new := dict -}}
{{- if kindIs "map" $value -}}
{{- $new = include "ydb-sidecar.flat" (dict "in" $value "at" (printf "%s." $name)) | fromJson -}}
{{- else if kindIs "slice" $value -}}
{{- $items := list -}}
{{- range $value }}{{ $items = append $items (include "ydb-sidecar.scalar" .) }}{{ end -}}
{{- $_ := set $new $name $items -}}
{{- else -}}
{{- $_ := set $new $name (include "ydb-sidecar.scalar" $value) -}}
{{- end -}}
{{- range $n, $v := $new -}}
{{- if hasKey $out $n }}{{ fail (printf "config: %s is there twice, nested and with dots: remove one" $n) }}{{ end -}}
{{- $_ := set $out $n $v -}}
{{- end -}}
{{- end -}}
{{- $out | toJson -}}
{{- end }}

{{- define "ydb-sidecar.config" -}}
{{- include "ydb-sidecar.flat" (dict "in" .Values.config "at" "") -}}
{{- end }}

{{/* The file of settings. JSON is YAML, and keeps every text as it is. */}}
{{- define "ydb-sidecar.file" -}}
# Settings of the sidecar, from the chart's value "config". It reads this file again when it changes.
{{- range $name, $value := include "ydb-sidecar.config" . | fromJson }}
{{ $name }}: {{ $value | toJson }}
{{- end }}
{{ end }}

{{- define "ydb-sidecar.variable" -}}
{{ printf "SIDECAR_%s" (. | upper | replace "." "_") }}
{{- end }}

{{/* The value of a setting as the text of a variable, in which a kubelet makes $ of $$. */}}
{{- define "ydb-sidecar.value" -}}
{{- include "ydb-sidecar.scalar" . | replace "$" "$$" -}}
{{- end }}

{{/* A value as text. Helm reads a number of YAML as a float, which prints 1000000 as 1e+06, and on as true: that does for a
switch, but not for a word such as off. */}}
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
args:
  - serve
  {{- with $v.extraArgs }}{{ toYaml . | nindent 2 }}{{ end }}
env:
  # In place of -config, so that commands of kubectl exec read it, too.
  - name: SIDECAR_CONFIG
    value: /etc/ydb-sidecar/config/sidecar.yaml
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
  - name: SIDECAR_GRPC_SOCKET
    value: {{ printf "%s/grpc.sock" $v.hostSocket.path | quote }}
  {{- else }}
  - name: SIDECAR_ADMIN_SOCKET
    value: /run/ydb-sidecar/own/admin
  {{- end }}
  {{- if eq .kind "native" }}
  {{- if not (hasKey (include "ydb-sidecar.config" .root | fromJson) "drain.idle") }}
  - name: SIDECAR_DRAIN_IDLE
    value: 2s
  {{- end }}
  {{- else }}
  - name: SIDECAR_DRAIN_DELAY
    value: {{ printf "%ds" (int $v.drain.delaySeconds) | quote }}
  {{- end }}
  {{- range $v.secretSettings }}
  - name: {{ include "ydb-sidecar.variable" .setting }}
    valueFrom:
      secretKeyRef: {name: {{ .secret | quote }}, key: {{ .key | quote }}}
  {{- end }}
  {{- range $v.secretFiles }}
  - name: {{ include "ydb-sidecar.variable" .setting }}
    value: {{ printf "/etc/ydb-sidecar/secrets/%s/%s" .secret .key | quote }}
  {{- end }}
  {{- with $v.extraEnv }}{{ toYaml . | nindent 2 }}{{ end }}
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
  {{- toYaml $v.securityContext | nindent 2 }}
volumeMounts:
  - name: ydb-sidecar
    mountPath: {{ if eq .kind "daemonset" }}{{ $v.hostSocket.path | quote }}{{ else }}/run/ydb-sidecar{{ end }}
  - name: ydb-sidecar-config
    mountPath: /etc/ydb-sidecar/config
    readOnly: true
  {{- range include "ydb-sidecar.secrets" .root | fromJsonArray }}
  - name: {{ printf "ydb-sidecar-secret-%s" . | trunc 63 | quote }}
    mountPath: {{ printf "/etc/ydb-sidecar/secrets/%s" . | quote }}
    readOnly: true
  {{- end }}
  {{- with $v.extraVolumeMounts }}{{ toYaml . | nindent 2 }}{{ end }}
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
- name: ydb-sidecar-config
  configMap: {name: {{ include "ydb-sidecar.fullname" .root }}-sidecar}
{{- range include "ydb-sidecar.secrets" .root | fromJsonArray }}
- name: {{ printf "ydb-sidecar-secret-%s" . | trunc 63 | quote }}
  secret: {secretName: {{ . | quote }}, defaultMode: 0444}
{{- end }}
{{- with .root.Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Seconds that the sidecar takes to end: drain.grace, 5 s, and drain.delaySeconds where that counts. Takes the same as the
container. */}}
{{- define "ydb-sidecar.drainSeconds" -}}
{{- $grace := include "ydb-sidecar.seconds" (get (include "ydb-sidecar.config" .root | fromJson) "drain.grace" | default "25s") -}}
{{- add $grace 5 (ternary 0 (int .root.Values.drain.delaySeconds) (eq .kind "native")) -}}
{{- end }}

{{/* terminationGracePeriodSeconds of the pod: as given, or long enough for the sidecar and the app. Takes the same as the
container. */}}
{{- define "ydb-sidecar.gracePeriod" -}}
{{- $d := .root.Values.drain -}}
{{- $needs := include "ydb-sidecar.drainSeconds" . | int -}}
{{- if $d.terminationGracePeriodSeconds -}}
{{- $given := int $d.terminationGracePeriodSeconds -}}
{{- if lt $given $needs -}}
{{- fail (printf "drain.terminationGracePeriodSeconds is %d; must be at least %d for drain.grace, 5 s and, except for layout native, drain.delaySeconds; 0 computes it" $given $needs) -}}
{{- end -}}
{{- $given -}}
{{- else if eq .kind "native" -}}
{{- add $needs $d.appSeconds -}}
{{- else if eq .kind "classic" -}}
{{- max $needs $d.appSeconds -}}
{{- else -}}
{{- $needs -}}
{{- end -}}
{{- end }}

{{/* What the pods of all workloads have: where they run, and as whom. */}}
{{- define "ydb-sidecar.placement" -}}
{{- $v := .Values }}
{{- with $v.serviceAccountName }}
serviceAccountName: {{ . | quote }}
{{- end }}
{{- with $v.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- range $field, $value := dict "imagePullSecrets" $v.imagePullSecrets "securityContext" $v.podSecurityContext "nodeSelector" $v.nodeSelector "tolerations" $v.tolerations "affinity" $v.affinity "topologySpreadConstraints" $v.topologySpreadConstraints }}
{{- with $value }}
{{ $field }}:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}

{{/* Labels and annotations of the pods. */}}
{{- define "ydb-sidecar.podMetadata" -}}
labels:
  {{- include "ydb-sidecar.selector" . | nindent 2 }}
  {{- with include "ydb-sidecar.podLabels" (dict "root" .) }}{{ . | nindent 2 }}{{ end }}
  {{- with merge (deepCopy .Values.podLabels) .Values.app.labels .Values.commonLabels }}{{ toYaml . | nindent 2 }}{{ end }}
{{- $annotations := merge (deepCopy .Values.podAnnotations) .Values.app.annotations }}
{{- if .Values.configRollout }}
{{- $_ := set $annotations "ydb-sidecar/config" (include "ydb-sidecar.file" . | sha256sum) }}
{{- end }}
{{- with $annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The pod of an app. */}}
{{- define "ydb-sidecar.pod" -}}
{{- $it := dict "root" . "kind" .Values.layout -}}
metadata:
  {{- include "ydb-sidecar.podMetadata" . | nindent 2 }}
spec:
  {{- if eq .Values.workload "job" }}
  restartPolicy: Never
  {{- end }}
  terminationGracePeriodSeconds: {{ include "ydb-sidecar.gracePeriod" $it }}
  {{- include "ydb-sidecar.placement" . | nindent 2 }}
  {{- if or (eq .Values.layout "native") .Values.app.initContainers }}
  initContainers:
    {{- if eq .Values.layout "native" }}
    -
      {{- include "ydb-sidecar.container" $it | nindent 6 }}
    {{- end }}
    {{- with .Values.app.initContainers }}{{ toYaml . | nindent 4 }}{{ end }}
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
{{- end }}
