"""A node for a real Kubernetes API server, without a container engine: it stands in for kubelet, container runtime,
service proxy and cluster DNS. ``python -m kubelet DIRECTORY`` starts it; :mod:`pods_support` prepares what it needs.

Each pod has a network namespace with an address of its own on a bridge; its container has a root of its own, mount,
pid, ipc and uts namespaces, and the user, groups, capabilities, environment and files that the pod asks for. In the
place of its image stand this machine's ``/usr`` and some folders, read-only. Probes are asked, a container that ends is
started again, a deleted pod gets SIGTERM, its grace period, then SIGKILL. Files of ConfigMaps and Secrets follow these.
A Service is a TCP forwarder to its ready endpoints at its cluster address; names come from ``/etc/hosts``. It needs
root, ``ip`` (iproute2), and namespaces of its own: ``unshare --net --mount --pid --fork --mount-proc``.

Not imitated:

* images: the same files stand for all of them; their ``ENTRYPOINT`` and user are not known;
* pods of several containers; init, ephemeral and sidecar containers; hooks of a container's life;
* TCP and gRPC probes; ``initialDelaySeconds``, ``successThreshold`` and ``httpHeaders`` of probes;
* ``envFrom``, ``configMapKeyRef``, ``resourceFieldRef``, service links, ``subPath``, ``optional`` variables; volumes
  but claims, ``emptyDir``, ``configMap``, ``secret`` and ``projected``; the files of a volume that was changed stay
  beside the new ones, until the pod ends;
* tokens are of the service account, not bound to the pod, and not renewed;
* limits of memory, CPU and scratch space, eviction; seccomp and other security modules; ``/dev`` is this machine's;
* ``shareProcessNamespace``, ``activeDeadlineSeconds`` of pods, ``kubectl logs`` and ``exec``;
* a pod's status has its phase, address, the condition ``Ready`` and its container's state, and nothing else;
* NetworkPolicies; UDP, session affinity, load balancers; several nodes, and nodes that die.

A container that ended is started again after 1 s each time: a kubelet waits for 10 s at first, and then longer.
"""
