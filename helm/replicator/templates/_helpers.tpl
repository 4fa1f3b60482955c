{{- /* Names of Services begin with a letter and have no dots. Suffixes follow, so a long name is cut, and told apart by what it
was. */ -}}
{{- define "replicator.fullname" -}}
{{- $name := .Values.fullnameOverride -}}
{{- if not $name -}}
{{- $chart := default .Chart.Name .Values.nameOverride -}}
{{- $name = ternary .Release.Name (printf "%s-%s" .Release.Name $chart) (contains $chart .Release.Name) -}}
{{- end -}}
{{- $name = replace "." "-" $name -}}
{{- if not (regexMatch "^[a-z]" $name) -}}{{- $name = printf "r-%s" $name -}}{{- end -}}
{{- if gt (len $name) 40 -}}{{- $name = printf "%s-%s" ($name | trunc 31 | trimSuffix "-") (sha256sum $name | trunc 8) -}}{{- end -}}
{{- $name -}}
{{- end -}}

{{- define "replicator.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "replicator.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "replicator.selector" . }}
app.kubernetes.io/version: {{ regexReplaceAll "^[^A-Za-z0-9]+|[^A-Za-z0-9]+$" (.Values.image.tag | default .Chart.AppVersion | trunc 63) "" | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "replicator.namespace" -}}
{{ .Values.namespaceOverride | default .Release.Namespace }}
{{- end -}}

{{- /* Labels and annotations of an object or a pod. Its own `labels` and `annotations` win over those of all, and none over
those by which pods are found. */ -}}
{{- define "replicator.marks" -}}
{{- $found := include "replicator.selector" .root | fromYaml -}}
{{- with .component }}{{ $_ := set $found "app.kubernetes.io/component" . }}{{ end -}}
labels: {{ merge $found (deepCopy (.labels | default dict)) (deepCopy .root.Values.commonLabels) (include "replicator.labels" .root | fromYaml) | toYaml | nindent 2 }}
{{- with merge (deepCopy (.annotations | default dict)) (deepCopy .root.Values.commonAnnotations) }}
annotations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* What every object begins with. `suffix` follows the release's name. */ -}}
{{- define "replicator.metadata" -}}
name: {{ printf "%s%s" (include "replicator.fullname" .root) (.suffix | default "") | quote }}
{{- with .namespace | default .root.Values.namespaceOverride }}
namespace: {{ . | quote }}
{{- end }}
{{ include "replicator.marks" . }}
{{- end -}}

{{- define "replicator.image" -}}
{{- with .Values.global.imageRegistry -}}{{ trimSuffix "/" . }}/{{- end -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- define "replicator.serviceAccountName" -}}
{{- .Values.serviceAccount.name | default (ternary (include "replicator.fullname" .) "default" .Values.serviceAccount.create) -}}
{{- end -}}

{{- /* Never `default`, which all pods of the namespace have that name no other: it gets the right to make pods. */ -}}
{{- define "replicator.driverServiceAccountName" -}}
{{- if not .Values.driver.kubernetes.enabled -}}
{{ include "replicator.serviceAccountName" . }}
{{- else if .Values.serviceAccount.create -}}
{{ include "replicator.fullname" . }}-driver
{{- else -}}
{{ .Values.serviceAccount.driverName }}
{{- end -}}
{{- end -}}

{{- /* Of every Service with an address; `of` has its values. */ -}}
{{- define "replicator.service" -}}
type: {{ .of.type }}
{{- include "replicator.families" .root }}
{{- with .of.clusterIP }}
clusterIP: {{ . | quote }}
{{- end }}
{{- if and (ne .of.type "ClusterIP") .of.externalTrafficPolicy }}
externalTrafficPolicy: {{ .of.externalTrafficPolicy }}
{{- end }}
{{- if eq .of.type "LoadBalancer" }}
{{- with .of.loadBalancerIP }}
loadBalancerIP: {{ . | quote }}
{{- end }}
{{- with .of.loadBalancerClass }}
loadBalancerClass: {{ . | quote }}
{{- end }}
{{- with .of.loadBalancerSourceRanges }}
loadBalancerSourceRanges: {{ toJson . }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "replicator.nodePort" -}}
{{- with . }}, nodePort: {{ int . }}{{ end -}}
{{- end -}}

{{- define "replicator.families" }}
{{- with .Values.ipFamilyPolicy }}
ipFamilyPolicy: {{ . }}
{{- end }}
{{- with .Values.ipFamilies }}
ipFamilies: {{ toJson . }}
{{- end }}
{{- end -}}

{{- /* Gives every value that was set to null what `replicator.unset` has for it. Helm takes such values out, and templates would
stumble over them. Whole numbers become integers: Helm reads floats from files, and would write a million as 1e+06. Each file begins
with this, for files are rendered in no order that could be relied on. */ -}}
{{- define "replicator.prepare" -}}
{{- include "replicator.fill" (dict "into" .Values "from" (include "replicator.unset" . | fromYaml)) -}}
{{- end -}}

{{- define "replicator.fill" -}}
{{- $into := .into -}}
{{- range $key, $value := .from -}}
{{- if not (hasKey $into $key) -}}{{- $_ := set $into $key $value -}}
{{- else if kindIs "invalid" (get $into $key) -}}{{- $_ := set $into $key $value -}}
{{- else if kindIs "float64" (get $into $key) -}}{{- if eq (get $into $key) (floor (get $into $key)) -}}{{- $_ := set $into $key (int64 (get $into $key)) -}}{{- end -}}
{{- else if and (kindIs "map" $value) (kindIs "map" (get $into $key)) -}}{{- include "replicator.fill" (dict "into" (get $into $key) "from" $value) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* A quantity of Kubernetes as a number. */ -}}
{{- define "replicator.quantity" -}}
{{- $text := toString . -}}
{{- if or (kindIs "float64" .) (kindIs "int64" .) (kindIs "int" .) (regexMatch "^[0-9.]+[eE][-+]?[0-9]+$" $text) -}}
{{ float64 . }}
{{- else -}}
{{- $number := regexFind "^[0-9.]+" $text -}}
{{- $factors := dict "" 1.0 "m" 0.001 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18 "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0 "Pi" 1125899906842624.0 "Ei" 1152921504606846976.0 -}}
{{ mulf (float64 $number) (get $factors (trimPrefix $number $text) | default 1.0) }}
{{- end -}}
{{- end -}}

{{- /* Where the topology comes from. */ -}}
{{- define "replicator.hasContent" -}}
{{- if not (or .Values.topology.existingConfigMap .Values.topology.existingSecret) -}}true{{- end -}}
{{- end -}}

{{- define "replicator.tlsSecret" -}}
{{- .Values.tls.existingSecret | default (printf "%s-tls" (include "replicator.fullname" .)) -}}
{{- end -}}

{{- /* The names under which the topology has this cluster, without numbers. */ -}}
{{- define "replicator.ownNames" -}}
{{- $own := include "replicator.ownCluster" . | fromJson -}}
{{- $names := list -}}
{{- range list $own.address $own.advertised $own.pulsar $own.pulsar_tls -}}
{{- $name := regexReplaceAll ":[0-9]+$" (. | default "") "" -}}
{{- if and $name (not (regexMatch "^[0-9.]+$|:" $name)) -}}{{- $names = append $names $name -}}{{- end -}}
{{- end -}}
{{- uniq $names | toYaml -}}
{{- end -}}

{{- /* This cluster as `content` has it, as JSON. */ -}}
{{- define "replicator.ownCluster" -}}
{{- $clusters := .Values.topology.content.clusters | default dict -}}
{{- toJson (get $clusters .Values.cluster | default dict) -}}
{{- end -}}

{{- /* The port of a field of this cluster, such as `pulsar`, or 0. */ -}}
{{- define "replicator.ownPort" -}}
{{- $own := include "replicator.ownCluster" .root | fromJson -}}
{{- $place := get $own .field | default "" -}}
{{- if $place -}}{{ regexFind "[0-9]+$" $place }}{{- else if include "replicator.hasContent" .root -}}0{{- else -}}{{ .else | int }}{{- end -}}
{{- end -}}

{{- /* The ports that the topology has for this cluster, and the port of the pod to which each leads. With `atAddress` those of
clients at the host of `address` alone. */ -}}
{{- define "replicator.ownPorts" -}}
{{- $own := include "replicator.ownCluster" .root | fromJson -}}
{{- $at := regexReplaceAll "[0-9]+$" ($own.address | default "") "" -}}
{{- $fields := list "pulsar" "pulsar_tls" "advertised" -}}
{{- if not .atAddress -}}{{- $fields = prepend $fields "address" -}}{{- end -}}
{{- $plain := ternary "pulsar" "main" (ne "0" (include "replicator.pulsarPort" .root)) -}}
{{- $advertised := ternary "pulsar-tls" $plain (and .root.Values.tls.required (ne "0" (include "replicator.pulsarTlsPort" .root))) -}}
{{- $targets := dict "address" "main" "pulsar" "pulsar" "pulsar_tls" "pulsar-tls" "advertised" $advertised -}}
{{- $ports := dict -}}
{{- $atAddress := .atAddress -}}
{{- range $field := $fields -}}
{{- $place := get $own $field | default "" -}}
{{- $port := regexFind "[0-9]+$" $place -}}
{{- if and $port (not (hasKey $ports $port)) (or (not $atAddress) (eq $at (trimSuffix $port $place))) -}}{{- $_ := set $ports $port (get $targets $field) -}}{{- end -}}
{{- end -}}
{{- toYaml $ports -}}
{{- end -}}

{{- define "replicator.pulsarPort" -}}
{{- include "replicator.ownPort" (dict "root" . "field" "pulsar" "else" .Values.ports.pulsar) -}}
{{- end -}}

{{- define "replicator.pulsarTlsPort" -}}
{{- include "replicator.ownPort" (dict "root" . "field" "pulsar_tls" "else" .Values.ports.pulsarTls) -}}
{{- end -}}

{{- define "replicator.scheme" -}}
{{- ternary "https" "http" .Values.tls.required -}}
{{- end -}}

{{- /* HTTP probes cannot show a certificate. */ -}}
{{- define "replicator.probesNeedCertificate" -}}
{{- if and .Values.tls.required .Values.tls.requireClientCertificates -}}true{{- end -}}
{{- end -}}

{{- define "replicator.probe" -}}
{{- $times := omit .times "enabled" -}}
{{- if include "replicator.probesNeedCertificate" .root -}}
exec:
  command: [replicator, health{{ if eq .path "/readyz" }}, --ready{{ end }}, --file, {{ printf "/etc/replicator/topology/%s" .root.Values.topology.key | quote }}, --cluster, {{ .root.Values.cluster | quote }}]
{{- /* A process of a second, which a busy node makes ten: asked less often, and waited for. */ -}}
{{- $times = merge (dict "periodSeconds" (max 30 (int .times.periodSeconds)) "timeoutSeconds" (max 30 (int .times.timeoutSeconds))) $times -}}
{{- else -}}
httpGet:
  path: {{ .path }}
  port: main
  scheme: {{ include "replicator.scheme" .root | upper }}
{{- end }}
{{- with $times }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* What the topology file says in a pod: `content`, and in it what pods need where it does not say that itself. */ -}}
{{- define "replicator.topology" -}}
{{- $values := .Values -}}
{{- $root := . -}}
{{- $doc := deepCopy $values.topology.content -}}
{{- $clusters := dict -}}
{{- range $name, $given := $doc.clusters -}}
{{- $cluster := deepCopy ($given | default dict) -}}
{{- if not (hasKey $cluster "listen") -}}{{- $_ := set $cluster "listen" (printf "[::]:%d" (int $values.ports.main)) -}}{{- end -}}
{{- if not (hasKey $cluster "data") -}}{{- $_ := set $cluster "data" (printf "/var/lib/replicator/%s" $name) -}}{{- end -}}
{{- if and $values.database.existingSecret (not (hasKey $cluster "database")) (not (hasKey $cluster "database_file")) -}}
{{- $_ := set $cluster "database_file" (include "replicator.databasePlace" $root) -}}
{{- end -}}
{{- if and $values.tls.enabled (not (hasKey $cluster "tls")) -}}
{{- $tls := dict "certificate" "/etc/replicator/tls/tls.crt" "key" "/etc/replicator/tls/tls.key" -}}
{{- if $values.tls.requireClientCertificates -}}{{- $_ := set $tls "ca" "/etc/replicator/tls/ca.crt" -}}{{- end -}}
{{- $_ := set $cluster "tls" $tls -}}
{{- end -}}
{{- $_ := set $clusters $name $cluster -}}
{{- end -}}
{{- $_ := set $doc "clusters" $clusters -}}
{{- if and $doc.auth $values.auth.existingSecret (not (hasKey $doc.auth "token_file")) -}}
{{- $_ := set $doc.auth "token_file" (printf "/etc/replicator/auth/%s" $values.auth.tokenKey) -}}
{{- end -}}
{{- if $values.tls.enabled -}}
{{- $tls := deepCopy ($doc.tls | default dict) -}}
{{- if $values.tls.required -}}{{- $_ := set $tls "required" true -}}{{- end -}}
{{- if and $values.tls.trustOwnCa (not (hasKey $tls "trust")) -}}{{- $_ := set $tls "trust" "/etc/replicator/tls/ca.crt" -}}{{- end -}}
{{- if $tls -}}{{- $_ := set $doc "tls" $tls -}}{{- end -}}
{{- end -}}
{{- toYaml $doc -}}
{{- end -}}

{{- /* A text that changes when the worker has to be restarted: docs/topology.md says what it takes under way. */ -}}
{{- define "replicator.restartText" -}}
{{- if include "replicator.hasContent" . -}}
{{- $doc := include "replicator.topology" . | fromYaml -}}
{{- if .Values.topology.reloadOnChange -}}
{{- $own := omit (get $doc.clusters .Values.cluster | default dict) "policies" -}}
{{- $auth := pick ($doc.auth | default dict) "certificates" "token_file" -}}
{{- toJson (dict "own" $own "store" $doc.store "tls" $doc.tls "mode" ($doc.sync | default dict).mode "auth" $auth "asks" (not (empty $doc.auth))) -}}
{{- else -}}
{{- toJson $doc -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "replicator.topologyFile" -}}
/etc/replicator/topology/{{ .Values.topology.key }}
{{- end -}}

{{- define "replicator.workerUrl" -}}
{{- $own := include "replicator.ownCluster" . | fromJson -}}
{{- if .Values.driver.workerUrl -}}
{{ .Values.driver.workerUrl }}
{{- else if $own.address -}}
{{ include "replicator.scheme" . }}://{{ $own.address }}
{{- else -}}
{{ include "replicator.scheme" . }}://{{ include "replicator.fullname" . }}.{{ include "replicator.namespace" . }}.svc:{{ .Values.service.http.port }}
{{- end -}}
{{- end -}}

{{- /* Rules of what pods reach. */ -}}
{{- define "replicator.dnsRule" -}}
{{- with .Values.networkPolicy.dns }}
- to: {{ toYaml . | nindent 4 }}
  ports:
    {{- range $.Values.networkPolicy.dnsPorts }}
    - {port: {{ . }}, protocol: UDP}
    - {port: {{ . }}, protocol: TCP}
    {{- end }}
{{- end }}
{{- end -}}

{{- define "replicator.regionRule" -}}
{{- with .Values.networkPolicy.regions }}
- to: {{ toYaml . | nindent 4 }}
  ports:
    {{- range $.Values.networkPolicy.regionPorts }}
    - {port: {{ . }}}
    {{- end }}
{{- end }}
{{- end -}}

{{- define "replicator.brokersRule" -}}
{{- with .Values.networkPolicy.brokers }}
- to: {{ toYaml . | nindent 4 }}
  ports:
    {{- range $.Values.networkPolicy.brokerPorts }}
    - {port: {{ . }}}
    {{- end }}
{{- end }}
{{- end -}}

{{- define "replicator.databaseRule" -}}
{{- if .Values.database.existingSecret }}
- to: {{ toYaml .Values.networkPolicy.database | nindent 4 }}
  ports: [{port: {{ .Values.networkPolicy.databasePort }}}]
{{- end }}
{{- end -}}

{{- /* What a pod that asks workers shows to them, and whom it trusts. */ -}}
{{- define "replicator.accessEnv" -}}
{{- if .Values.auth.existingSecret }}
- {name: REPLICATOR_TOKEN_FILE, value: {{ printf "/etc/replicator/auth/%s" .Values.auth.tokenKey | quote }}}
{{- end }}
{{- if .Values.tls.required }}
- {name: REPLICATOR_TLS, value: "1"}
{{- end }}
{{- if and .Values.tls.enabled .Values.tls.trustOwnCa }}
- {name: REPLICATOR_TRUST, value: /etc/replicator/tls/ca.crt}
{{- end }}
{{- if .Values.tls.requireClientCertificates }}
- {name: REPLICATOR_CERTIFICATE, value: /etc/replicator/tls/tls.crt}
- {name: REPLICATOR_KEY, value: /etc/replicator/tls/tls.key}
{{- end }}
{{- end -}}
