{{- /* What all pods of a release share: a value for pods is read here, and nowhere else. `name` names the topology's object where
it is not the release's own; `optional` is for pods that run before there is everything. */ -}}

{{- /* `of` are the values of this pod alone, and `inside` says that it reaches the worker by the cluster's own names. */ -}}
{{- define "replicator.podMarks" -}}
{{- include "replicator.marks" (dict "root" .root "component" .component "labels" .of.labels "annotations" (merge (deepCopy (.annotations | default dict)) (.of.annotations | default dict))) -}}
{{- end -}}

{{- define "replicator.podDefaults" -}}
{{- $root := .root -}}
{{- $of := .of | default dict -}}
{{- $aliases := $root.Values.hostAliases -}}
{{- if and .inside $root.Values.insideAddress -}}{{- $aliases = append $aliases (dict "ip" $root.Values.insideAddress "hostnames" (include "replicator.ownNames" $root | fromYamlArray)) -}}{{- end -}}
{{- range $field := list "affinity" "topologySpreadConstraints" "initContainers" }}
{{- with get $of $field }}
{{ $field }}: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- with $of.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with $of.nodeSelector | default $root.Values.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with $of.tolerations | default $root.Values.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with $aliases }}
hostAliases: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with $root }}
{{- with concat (.Values.global.imagePullSecrets | default list) .Values.imagePullSecrets | uniq }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.dnsPolicy }}
dnsPolicy: {{ . }}
{{- end }}
{{- with .Values.dnsConfig }}
dnsConfig: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.runtimeClassName }}
runtimeClassName: {{ . | quote }}
{{- end }}
{{- with .Values.schedulerName }}
schedulerName: {{ . | quote }}
{{- end }}
securityContext: {{ toYaml .Values.podSecurityContext | nindent 2 }}
enableServiceLinks: false
{{- end }}
{{- end -}}

{{- define "replicator.sidecars" -}}
{{- with .of.sidecars }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "replicator.containerDefaults" -}}
{{- with .of.lifecycle }}
lifecycle: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .root }}
image: {{ include "replicator.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext: {{ toYaml .Values.securityContext | nindent 2 }}
{{- with .Values.envFrom }}
envFrom: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end -}}

{{- /* HOME is where programs may write that look for it. */ -}}
{{- define "replicator.env" -}}
- {name: HOME, value: /tmp}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "replicator.mounts" -}}
- {name: tmp, mountPath: /tmp}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "replicator.volumes" -}}
- name: tmp
  emptyDir: {sizeLimit: {{ .Values.scratch.sizeLimit }}}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* Tokens and certificates. */ -}}
{{- define "replicator.secretMounts" -}}
{{- if .Values.auth.existingSecret }}
- {name: auth, mountPath: /etc/replicator/auth, readOnly: true}
{{- end }}
{{- if .Values.tls.enabled }}
- {name: tls, mountPath: /etc/replicator/tls, readOnly: true}
{{- end }}
{{- end -}}

{{- define "replicator.secretVolumes" -}}
{{- $optional := ternary ", optional: true" "" (not (not .optional)) -}}
{{- with .root.Values.auth.existingSecret }}
- name: auth
  secret: {secretName: {{ . | quote }}, defaultMode: 0440{{ $optional }}}
{{- end }}
{{- if .root.Values.tls.enabled }}
- name: tls
  secret: {secretName: {{ include "replicator.tlsSecret" .root | quote }}, defaultMode: 0440{{ $optional }}}
{{- end }}
{{- end -}}

{{- define "replicator.topologyMount" -}}
- {name: topology, mountPath: /etc/replicator/topology, readOnly: true}
{{- end -}}

{{- define "replicator.topologyVolume" -}}
{{- $name := .name | default (printf "%s-topology" (include "replicator.fullname" .root)) -}}
{{- $optional := ternary ", optional: true" "" (not (not .optional)) -}}
- name: topology
{{- with .root.Values.topology }}
{{- if .existingSecret }}
  secret: {secretName: {{ .existingSecret | quote }}, defaultMode: 0440{{ $optional }}}
{{- else if .existingConfigMap }}
  configMap: {name: {{ .existingConfigMap | quote }}{{ $optional }}}
{{- else if .asSecret }}
  secret: {secretName: {{ $name }}, defaultMode: 0440}
{{- else }}
  configMap: {name: {{ $name }}}
{{- end }}
{{- end }}
{{- end -}}

{{- /* Of whoever goes by the topology. */ -}}
{{- define "replicator.topologyMounts" -}}
{{ include "replicator.topologyMount" . }}
{{- include "replicator.secretMounts" . }}
{{ include "replicator.mounts" . }}
{{- end -}}

{{- define "replicator.topologyVolumes" -}}
{{ include "replicator.topologyVolume" . }}
{{- include "replicator.secretVolumes" . }}
{{ include "replicator.volumes" .root }}
{{- end -}}

{{- define "replicator.databaseMount" -}}
{{- if .Values.database.existingSecret }}
- {name: database, mountPath: /etc/replicator/database, readOnly: true}
{{- end }}
{{- end -}}

{{- define "replicator.databaseVolume" -}}
{{- $optional := ternary ", optional: true" "" (not (not .optional)) -}}
{{- with .root.Values.database }}
{{- if .existingSecret }}
- name: database
  secret: {secretName: {{ .existingSecret | quote }}, defaultMode: 0440, items: [{key: {{ .key | quote }}, path: url}]{{ $optional }}}
{{- end }}
{{- end }}
{{- end -}}
