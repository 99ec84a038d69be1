{{- define "rljob-operator.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "rljob-operator.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "rljob-operator.labels" -}}
{{ include "rljob-operator.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{- /* The subjects of every binding. */ -}}
{{- define "rljob-operator.subjects" -}}
- kind: ServiceAccount
  name: {{ include "rljob-operator.fullname" . }}
  namespace: {{ .Release.Namespace }}
{{- end -}}

{{- /* The binding of a policy. Arguments: the root, and the last part of the policy's name. */ -}}
{{- define "rljob-operator.policyBinding" -}}
{{- $root := index . 0 -}}
{{- $name := printf "%s-%s.%s" (include "rljob-operator.fullname" $root) (index . 1) $root.Release.Namespace -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ $name }}
  labels:
    {{- include "rljob-operator.labels" $root | nindent 4 }}
spec:
  policyName: {{ $name }}
  validationActions: [Deny]
{{- end -}}

{{- /* In CEL: whether a job may use the Secret n. */ -}}
{{- define "rljob-operator.mayUseSecret" -}}
!n.matches('-auth-[0-9a-f]{8}-') && variables.secrets.exists(p, n == p
        || (p.endsWith('*') && n.startsWith(p.substring(0, p.size() - 1))))
{{- end -}}
