{{/* Name of the objects. */}}
{{- define "ydb-sidecar-monitoring.fullname" -}}
{{- .Values.fullnameOverride | default .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end }}

{{/* Labels of an object. Takes (dict "root" $ "more" LABELS). */}}
{{- define "ydb-sidecar-monitoring.labels" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with merge (deepCopy .more) .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}
