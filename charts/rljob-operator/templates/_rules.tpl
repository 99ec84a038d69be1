{{- /*
What the operator does in the namespaces of RLJobs: what it calls, and nothing else (tests/charts/test_rights.py).

It writes no spec of an RLJob and reads no Secret. To make an object by server-side apply takes create and patch.
*/ -}}
{{- define "rljob-operator.rules" -}}
- apiGroups: [rljob.dev]
  resources: [rljobs]
  verbs: [list, watch, patch]  # patch: the finalizer
- apiGroups: [rljob.dev]
  resources: [rljobs/status]
  verbs: [patch]
- apiGroups: [rljob.dev]
  resources: [rljobs/finalizers]
  verbs: [update]  # for blockOwnerDeletion; OwnerReferencesPermissionEnforcement requires it
- apiGroups: [ray.io]
  resources: [rayclusters]
  verbs: [list, watch, create, delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch, delete]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [list, watch, create, patch, delete]
- apiGroups: [apps]
  resources: [deployments]  # reward models
  verbs: [list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [services]
  verbs: [list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [list, watch, create, patch]  # users delete a checkpoint claim, or it is deleted with its RLJob
- apiGroups: [""]
  resources: [secrets]
  verbs: [create]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create]
{{- if .Values.kueue.enabled }}
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads]
  verbs: [list, watch, create, patch, delete]
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads/status]
  verbs: [patch]
{{- end }}
{{- range $scheduler, $group := dict "volcano" "scheduling.volcano.sh" "coscheduling" "scheduling.x-k8s.io" "native" "scheduling.k8s.io" }}
{{- if index $.Values.gang $scheduler }}
- apiGroups: [{{ $group }}]
  resources: [podgroups]
  verbs: [list, watch, create, patch, delete]
{{- end }}
{{- end }}
{{- end -}}
