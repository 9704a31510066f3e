"""cri - asks containerd's CRI service for pod sandboxes, as a kubelet does.

    cri SOCKET run NAMESPACE NAME [JSON]     prints the sandbox's id; JSON: ports, dns, annotations, labels
    cri SOCKET status ID                     prints its addresses and the process that holds its namespaces
    cri SOCKET stop ID | rm ID | ready       ready prints the condition of the network
"""

import json
import sys

import cri_pb2 as cri
import grpc

PROTOCOLS = {"tcp": 0, "udp": 1, "sctp": 2}


def main(socket, verb, *words):
    channel = grpc.insecure_channel("unix://" + socket)

    def call(method, request, answer=cri.Nothing):
        method = channel.unary_unary(
            "/runtime.v1.RuntimeService/" + method,
            request_serializer=lambda m: m.SerializeToString(),
            response_deserializer=answer.FromString,
        )
        return method(request, timeout=60)

    if verb == "run":
        namespace, name = words[:2]
        more = json.loads(words[2]) if len(words) > 2 else {}
        ports = [
            cri.PortMapping(
                protocol=PROTOCOLS[p.get("protocol", "tcp")], host_port=p["host"], container_port=p["container"]
            )
            for p in more.get("ports", [])
        ]
        config = cri.PodSandboxConfig(
            metadata=cri.PodSandboxMetadata(name=name, uid="uid-" + name, namespace=namespace),
            hostname=name,
            log_directory="/var/log/pods",
            dns_config=cri.DNSConfig(**more.get("dns", {})),
            port_mappings=ports,
            labels=more.get("labels", {}),
            annotations=more.get("annotations", {}),
        )
        request = cri.RunPodSandboxRequest(config=config)
        print(call("RunPodSandbox", request, cri.RunPodSandboxResponse).pod_sandbox_id)
    elif verb == "status":
        request = cri.PodSandboxStatusRequest(pod_sandbox_id=words[0], verbose=True)
        answer = call("PodSandboxStatus", request, cri.PodSandboxStatusResponse)
        network = answer.status.network
        print(network.ip, *[a.ip for a in network.additional_ips], json.loads(answer.info["info"])["pid"])
    elif verb in ("stop", "rm"):
        method = {"stop": "StopPodSandbox", "rm": "RemovePodSandbox"}[verb]
        call(method, cri.PodSandboxRequest(pod_sandbox_id=words[0]))
    elif verb == "ready":
        status = call("Status", cri.StatusRequest(), cri.StatusResponse).status
        for c in status.conditions:
            if c.type == "NetworkReady":
                print(c.status, c.reason, c.message)
    else:
        raise SystemExit(__doc__)


if len(sys.argv) < 3:
    raise SystemExit(__doc__)
try:
    main(*sys.argv[1:])
except grpc.RpcError as error:
    raise SystemExit(error.details() or str(error.code()))
