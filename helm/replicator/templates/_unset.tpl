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
  tls: []
tls:
  enabled: false
  required: false
  existingSecret: ''
  requireClientCertificates: false
  trustOwnCa: true
  certManager:
    enabled: false
    issuerRef:
      name: ''
      kind: Issuer
      group: cert-manager.io
    dnsNames: []
    duration: 2160h
    renewBefore: 720h
auth:
  existingSecret: ''
  tokenKey: token
database:
  existingSecret: ''
  key: uri
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
prometheusRule:
  enabled: false
  labels: {}
  linkLagSeconds: 60
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
