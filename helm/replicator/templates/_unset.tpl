{{- /* Made from values.yaml by `python helm/readme.py`. */ -}}
{{- define "replicator.unset" -}}
cluster: ''
nameOverride: ''
fullnameOverride: ''
namespaceOverride: ''
replicas: 1
global:
  imageRegistry: ''
  imagePullSecrets: []
commonLabels: {}
commonAnnotations: {}
extraObjects: []
image:
  repository: replicator
  tag: ''
  digest: ''
  pullPolicy: IfNotPresent
imagePullSecrets: []
topology:
  content: {}
  asSecret: false
  existingConfigMap: ''
  existingSecret: ''
  key: topology.yaml
  reloadOnChange: true
ports:
  main: 7101
  pulsar: 0
  pulsarTls: 0
  metrics: 7102
ipFamilyPolicy: ''
ipFamilies: []
insideAddress: ''
service:
  http:
    type: ClusterIP
    port: 7101
    nodePort: 0
    annotations: {}
    clusterIP: ''
    loadBalancerIP: ''
    loadBalancerClass: ''
    loadBalancerSourceRanges: []
    externalTrafficPolicy: ''
  pulsar:
    enabled: true
    type: ClusterIP
    port: 6650
    tlsPort: 6651
    nodePort: 0
    tlsNodePort: 0
    annotations: {}
    clusterIP: ''
    loadBalancerIP: ''
    loadBalancerClass: ''
    loadBalancerSourceRanges: []
    externalTrafficPolicy: ''
  links:
    enabled: false
    type: LoadBalancer
    port: 7101
    nodePort: 0
    annotations: {}
    clusterIP: ''
    loadBalancerIP: ''
    loadBalancerClass: ''
    loadBalancerSourceRanges: []
    externalTrafficPolicy: Cluster
ingress:
  enabled: false
  className: ''
  annotations: {}
  hosts: []
  pathType: Prefix
  tls: []
gateway:
  enabled: false
  parentRefs: []
  hostnames: []
  passthrough: false
  tcp:
    pulsar: []
    pulsarTls: []
    links: []
  annotations: {}
tls:
  enabled: false
  required: false
  existingSecret: ''
  keys:
    certificate: tls.crt
    key: tls.key
    ca: ca.crt
  requireClientCertificates: false
  trustOwnCa: true
  certManager:
    enabled: false
    issuerRef:
      name: ''
      kind: Issuer
      group: cert-manager.io
    dnsNames: []
    secretTemplate: {}
    duration: 2160h
    renewBefore: 720h
authorities:
  existingConfigMap: ''
  existingSecret: ''
  key: ca.crt
auth:
  existingSecret: ''
  tokenKey: token
database:
  existingSecret: ''
  key: uri
  keys:
    host: ''
    port: ''
    user: ''
    password: ''
    name: ''
  authority:
    existingSecret: ''
    key: ca.crt
checks:
  enabled: true
  activeDeadlineSeconds: 300
  pod: {}
  backoffLimit: 0
  ttlSecondsAfterFinished: 3600
  resources: {}
migrations:
  enabled: true
  activeDeadlineSeconds: 300
  pod: {}
  backoffLimit: 2
  ttlSecondsAfterFinished: 3600
  resources: {}
persistence:
  size: 50Gi
  storageClass: ''
  accessModes:
  - ReadWriteOnce
  annotations: {}
  existingClaim: ''
  selector: {}
  dataSource: {}
  whenDeleted: Retain
scratch:
  sizeLimit: 10Gi
driver:
  enabled: false
  workerUrl: ''
  master: ''
  conf: {}
  kubernetes:
    enabled: false
    master: k8s://https://kubernetes.default.svc
    image: ''
    executors: 2
    cores: 1
    memory: 512m
    memoryOverhead: 768m
    pod: {}
    driverPort: 7078
    blockManagerPort: 7079
  pod: {}
  resources: {}
serviceAccount:
  create: true
  name: ''
  driverName: ''
  annotations: {}
resources: {}
terminationGracePeriodSeconds: 60
watchdog:
  endAfter: 60s
probes:
  startup: {}
  liveness: {}
  readiness: {}
podSecurityContext: {}
securityContext: {}
statefulSetAnnotations: {}
updateStrategy: RollingUpdate
initContainers: []
sidecars: []
lifecycle: {}
podAnnotations: {}
podLabels: {}
nodeSelector: {}
tolerations: []
affinity: {}
topologySpreadConstraints: []
priorityClassName: ''
hostAliases: []
dnsPolicy: ''
dnsConfig: {}
runtimeClassName: ''
schedulerName: ''
envFrom: []
extraEnv: []
extraVolumes: []
extraVolumeMounts: []
podDisruptionBudget:
  enabled: false
  maxUnavailable: 1
networkPolicy:
  enabled: false
  clients: []
  regions: []
  regionPorts: []
  metrics: []
  brokers: []
  brokerPorts: []
  database: []
  databasePort: 5432
  kubernetesApi: []
  kubernetesApiPorts: []
  dns: []
  dnsPorts:
  - 53
  extraEgress: []
serviceMonitor:
  enabled: false
  labels: {}
  namespace: ''
  honorLabels: false
  relabelings: []
  metricRelabelings: []
  interval: 30s
  scrapeTimeout: 10s
  tokenSecret:
    name: ''
    key: ''
podMonitor:
  enabled: false
prometheusRule:
  enabled: false
  labels: {}
  namespace: ''
  linkLagSeconds: 60
  rules: {}
  runbooks: docs/runbooks.md
  extraRules: []
dashboards:
  enabled: false
  labels: {}
  folder: ''
test:
  namespace: public/roundtrip
  messages: 20
  links: false
  timeoutSeconds: 180
  ttlSecondsAfterFinished: 3600
  pod: {}
  resources: {}
backup:
  enabled: false
  schedule: 7 * * * *
  timeZone: ''
  suspend: false
  at: /backups
  existingClaim: ''
  keep: 48
  history: 3
  ttlSecondsAfterFinished: 0
  activeDeadlineSeconds: 3600
  pod: {}
  resources: {}
  restore:
    enabled: false
    backup: ''
    without: []
drill:
  enabled: false
  schedule: 17 4 * * *
  timeZone: ''
  suspend: false
  namespace: public/canary
  messages: 2000
  rate: 500
  subscriptions: all
  activeDeadlineSeconds: 1800
  history: 3
  ttlSecondsAfterFinished: 0
  pod: {}
  extraArgs: []
  resources: {}
{{- end -}}
