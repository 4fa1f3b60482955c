"""A node for a real Kubernetes API server: what stands in for kubelet, container runtime, service proxy, cluster DNS,
load balancers and a provisioner of volumes, without a container engine. ``python -m kubelet --help`` starts it.

Each pod has a network namespace with an address of its own on a bridge; each container has a root of its own, mount, pid,
ipc and uts namespaces, and the user, groups, capabilities, environment, files and working directory that the pod asks
for. In the place of an image stand this machine's ``/usr`` and some folders, read-only. Probes are asked, containers that
end are started again, a deleted pod gets SIGTERM, its grace period, then SIGKILL. Files of ConfigMaps and Secrets follow
these. A Service is a TCP forwarder to its ready endpoints at its cluster address; names come from ``/etc/hosts``.

It needs root, ``ip`` (iproute2) and a network and mount namespace of its own: ``unshare --net --mount --pid --fork``.

Not imitated: images; limits of memory and CPU, and what is evicted; seccomp and other security modules; NetworkPolicies;
UDP, session affinity, ``externalTrafficPolicy``; ``kubectl logs``, ``exec``, ``attach`` and ``port-forward``; tokens are
not renewed; ephemeral and sidecar containers, ``postStart``, gRPC probes, ``resourceFieldRef``, ``activeDeadlineSeconds``
of pods; several nodes; a node that dies. A container that ends is started again after 0.5 s at first, not 10 s.
"""
