"""Administration over HTTP, under ``/admin/v2``, in the shape that Pulsar's tools expect. One module per resource."""
