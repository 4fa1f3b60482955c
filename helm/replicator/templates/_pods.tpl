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
{{- if ne (toString .component) "executor" }}{{- /* Spark gives it its image. */}}
image: {{ include "replicator.image" .root | quote }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
{{- end }}
{{- with .root }}
securityContext: {{ toYaml .Values.securityContext | nindent 2 }}
{{- with .Values.envFrom }}
envFrom: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "replicator.hasAuthorities" -}}
{{- if or .Values.authorities.existingConfigMap .Values.authorities.existingSecret -}}true{{- end -}}
{{- end -}}

{{- /* HOME is where programs may write that look for it. */ -}}
{{- define "replicator.env" -}}
- {name: HOME, value: /tmp}
{{- if include "replicator.hasAuthorities" . }}
- {name: SSL_CERT_FILE, value: /etc/replicator/authorities/ca.crt}
- {name: REQUESTS_CA_BUNDLE, value: /etc/replicator/authorities/ca.crt}
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "replicator.mounts" -}}
- {name: tmp, mountPath: /tmp}
{{- if include "replicator.hasAuthorities" . }}
- {name: authorities, mountPath: /etc/replicator/authorities, readOnly: true}
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "replicator.volumes" -}}
- name: tmp
  emptyDir: {sizeLimit: {{ .Values.scratch.sizeLimit }}}
{{- with .Values.authorities }}
{{- if .existingConfigMap }}
- name: authorities
  configMap: {name: {{ .existingConfigMap | quote }}, items: [{key: {{ .key | quote }}, path: ca.crt}]}
{{- else if .existingSecret }}
- name: authorities
  secret: {secretName: {{ .existingSecret | quote }}, defaultMode: 0440, items: [{key: {{ .key | quote }}, path: ca.crt}]}
{{- end }}
{{- end }}
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
  secret:
    secretName: {{ include "replicator.tlsSecret" .root | quote }}
    defaultMode: 0440
    {{- with .root.Values.tls }}
    {{- if ne (toJson (list .keys.certificate .keys.key .keys.ca)) (toJson (list "tls.crt" "tls.key" "ca.crt")) }}
    items:
      - {key: {{ .keys.certificate | quote }}, path: tls.crt}
      - {key: {{ .keys.key | quote }}, path: tls.key}
      {{- if or .trustOwnCa .requireClientCertificates }}
      - {key: {{ .keys.ca | quote }}, path: ca.crt}
      {{- end }}
    {{- end }}
    {{- end }}
    {{- if .optional }}
    optional: true
    {{- end }}
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

{{- /* The file with the database's URL, or the directory with its parts. */ -}}
{{- define "replicator.databasePlace" -}}
/etc/replicator/database/{{ ternary "parts" "url" (not (empty .Values.database.keys.host)) }}
{{- end -}}

{{- define "replicator.databaseEnv" -}}
{{- if and .Values.database.existingSecret .Values.database.authority.existingSecret }}
- {name: PGSSLMODE, value: verify-full}
- {name: PGSSLROOTCERT, value: /etc/replicator/database-authority/ca.crt}
{{- end }}
{{- end -}}

{{- define "replicator.databaseMount" -}}
{{- if .Values.database.existingSecret }}
- {name: database, mountPath: /etc/replicator/database, readOnly: true}
{{- if .Values.database.authority.existingSecret }}
- {name: database-authority, mountPath: /etc/replicator/database-authority, readOnly: true}
{{- end }}
{{- end }}
{{- end -}}

{{- define "replicator.databaseVolume" -}}
{{- $optional := ternary ", optional: true" "" (not (not .optional)) -}}
{{- with .root.Values.database }}
{{- if .existingSecret }}
- name: database
  secret:
    secretName: {{ .existingSecret | quote }}
    defaultMode: 0440
    items:
      {{- if .keys.host }}
      - {key: {{ .keys.host | quote }}, path: parts/host}
      - {key: {{ .keys.user | quote }}, path: parts/user}
      - {key: {{ .keys.password | quote }}, path: parts/password}
      - {key: {{ .keys.name | quote }}, path: parts/dbname}
      {{- with .keys.port }}
      - {key: {{ . | quote }}, path: parts/port}
      {{- end }}
      {{- else }}
      - {key: {{ .key | quote }}, path: url}
      {{- end }}
    {{- if $optional }}
    optional: true
    {{- end }}
{{- with .authority }}
{{- if .existingSecret }}
- name: database-authority
  secret: {secretName: {{ .existingSecret | quote }}, defaultMode: 0440, items: [{key: {{ .key | quote }}, path: ca.crt}]{{ $optional }}}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}
