{{- /* The pod of a job, in which the program runs once with `args`. `values` are those of this job. `early` is for one that runs before
the release, on what it is to be; the others ask the release as it is. */ -}}
{{- define "replicator.jobPod" -}}
{{- $root := .root -}}
{{- $early := .early -}}
{{- $pod := dict "root" $root "component" .component "of" .values.pod "inside" (not $early) -}}
{{- $volumes := dict "root" $root -}}
{{- if $early -}}{{- $volumes = dict "root" $root "name" (printf "%s-next" (include "replicator.fullname" $root)) "optional" true -}}{{- end -}}
metadata: {{ include "replicator.podMarks" $pod | nindent 2 }}
spec:
  {{- include "replicator.podDefaults" $pod | nindent 2 }}
  restartPolicy: Never
  serviceAccountName: {{ include (ternary "replicator.hookAccount" "replicator.serviceAccountName" (not (not $early))) $root | quote }}
  automountServiceAccountToken: false
  containers:
    - name: {{ .component }}
      {{- include "replicator.containerDefaults" $pod | nindent 6 }}
      command: [replicator]
      args: {{ toYaml .args | nindent 8 }}
      terminationMessagePolicy: FallbackToLogsOnError
      env:
        {{- include "replicator.env" $root | nindent 8 }}
        {{- include (ternary "replicator.databaseEnv" "replicator.accessEnv" (not (not $early))) $root | nindent 8 }}
      resources: {{ toYaml .values.resources | nindent 8 }}
      volumeMounts:
        {{- include "replicator.topologyMounts" $root | nindent 8 }}
        {{- if $early }}
        {{- include "replicator.databaseMount" $root | nindent 8 }}
        {{- end }}
        {{- if .claim }}
        - {name: backups, mountPath: /backups}
        {{- end }}
    {{- include "replicator.sidecars" $pod | nindent 4 }}
  # What is not there is named by a check; a pod that waits for it would say nothing.
  volumes:
    {{- include "replicator.topologyVolumes" $volumes | nindent 4 }}
    {{- if $early }}
    {{- include "replicator.databaseVolume" $volumes | nindent 4 }}
    {{- end }}
    {{- with .claim }}
    - name: backups
      persistentVolumeClaim: {claimName: {{ . | quote }}}
    {{- end }}
{{- end -}}

{{- /* A job now and then. It is not tried again: the next one is soon, and what failed is there to be read. */ -}}
{{- define "replicator.cronJob" -}}
apiVersion: batch/v1
kind: CronJob
metadata: {{ include "replicator.metadata" (dict "root" .root "suffix" (printf "-%s" .component) "component" .component) | nindent 2 }}
spec:
  schedule: {{ .values.schedule | quote }}
  {{- with .values.timeZone }}
  timeZone: {{ . | quote }}
  {{- end }}
  suspend: {{ .values.suspend }}
  concurrencyPolicy: Forbid
  successfulJobsHistoryLimit: {{ .values.history }}
  failedJobsHistoryLimit: {{ .values.history }}
  jobTemplate:
    metadata: {{ include "replicator.marks" (dict "root" .root "component" .component) | nindent 6 }}
    spec:
      backoffLimit: 0
      activeDeadlineSeconds: {{ .values.activeDeadlineSeconds }}
      {{- with .values.ttlSecondsAfterFinished }}
      ttlSecondsAfterFinished: {{ . }}
      {{- end }}
      template: {{ include "replicator.jobPod" . | nindent 8 }}
{{- end -}}
