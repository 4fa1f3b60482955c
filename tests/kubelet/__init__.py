"""A node for a real Kubernetes API server, without a container engine: it stands in for kubelet, container runtime,
service proxy and cluster DNS. ``python -m kubelet --help`` starts it; :mod:`pods_support` prepares what it needs.

Each pod has a network namespace with an address of its own on a bridge; each container has a root of its own, mount,
pid, ipc and uts namespaces, and the user, groups, capabilities, environment and files that the pod asks for. In the
place of an image stand this machine's ``/usr`` and some folders, read-only. Probes are asked, containers that end are
started again, a deleted pod gets SIGTERM, its grace period, then SIGKILL. Files of ConfigMaps and Secrets follow these.
A Service is a TCP forwarder to its ready endpoints at its cluster address; names come from ``/etc/hosts``. It needs
root, ``ip`` (iproute2), and namespaces of its own: ``unshare --net --mount --pid --fork --mount-proc``.

Not imitated: images, and their ``ENTRYPOINT``; limits of memory and CPU, eviction; seccomp and other security modules;
NetworkPolicies; UDP, session affinity, load balancers; ``kubectl logs`` and ``exec``; renewal of tokens; init,
ephemeral and sidecar containers, hooks of a container's life, TCP and gRPC probes, ``envFrom``, service links,
``resourceFieldRef``, ``subPath``, ``activeDeadlineSeconds`` of pods; several nodes, and nodes that die. A container
that ended is started again after 0.5 s at first, not 10 s.
"""
