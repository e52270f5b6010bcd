// Package kubeapi learns from the Kubernetes API server what the kubelet does not report
// about the pods of this node: their UID and phase, their owners or group, their queue, selected labels, and the
// other names of claimed devices.
//
// It needs a service account or a kubeconfig, and the permissions below. It caches what it
// learns, so that lookups never block, and Client never writes to the API server.
//
// # What it requests, and how often
//
//   - The pods of this node, with one list and one watch using the field selector
//     spec.nodeName. Pods of other nodes are never received. A pod is stripped as it arrives.
//   - The owners of pods that were looked up: metadata only, each once, at most one request
//     per second. A node with 250 pods of which 8 have a GPU requests the owners of 8.
//   - The ResourceSlices of this node every minute, and the ResourceClaims of devices that
//     were looked up, only while claims are in use.
//   - This node every 5 minutes, metadata only.
//
// API is for those who need more: gpumeter why lists all pods and nodes and, where the server has them, claims of devices and
// groups of pods. The scheduler receiver watches the same in one process per cluster, elected by a Lease.
//
// The package has its own small client. client-go would add 8 MB to the binary, and the
// generated clientset 32 MB more. See docs/adr/0007-a-small-kubernetes-client.md.
//
// # Permissions
//
// Every rule is optional, and State reports what is missing without it. The complete role:
//
//	apiVersion: rbac.authorization.k8s.io/v1
//	kind: ClusterRole
//	metadata: {name: gpumeter}
//	rules:
//	- apiGroups: [""]            # UID, phase, labels and the direct owner; required for anything in this package
//	  resources: [pods]
//	  verbs: [get, list, watch]
//	- apiGroups: [""]            # zone and region
//	  resources: [nodes]
//	  verbs: [get]
//	- apiGroups: [apps]          # above the ReplicaSet: an Argo Rollout, an operator's own kind
//	  resources: [replicasets, deployments, statefulsets, daemonsets]
//	  verbs: [get]
//	- apiGroups: [batch]         # above the Job: CronJob, JobSet, TrainJob; its queue
//	  resources: [jobs, cronjobs]
//	  verbs: [get]
//	- apiGroups: [batch.volcano.sh] # above the Volcano job
//	  resources: [jobs]
//	  verbs: [get]
//	- apiGroups: [ray.io, kubeflow.org, trainer.kubeflow.org, jobset.x-k8s.io, leaderworkerset.x-k8s.io, workload.codeflare.dev, sparkoperator.k8s.io, argoproj.io]
//	  resources:                 # above these: the RayJob of a RayCluster, the TrainJob of a JobSet
//	  - rayclusters
//	  - rayjobs
//	  - rayservices
//	  - pytorchjobs
//	  - tfjobs
//	  - mpijobs
//	  - jaxjobs
//	  - xgboostjobs
//	  - paddlejobs
//	  - trainjobs
//	  - jobsets
//	  - leaderworkersets
//	  - appwrappers
//	  - sparkapplications
//	  - rollouts
//	  - workflows
//	  verbs: [get]
//	- apiGroups: [resource.k8s.io]
//	  resources: [resourceslices] # the UUID of a claimed device
//	  verbs: [list]
//	- apiGroups: [resource.k8s.io]
//	  resources: [resourceclaims] # which claims have admin access, see Access
//	  verbs: [get]
//
// Add the kinds of other operators that create pods. Only their metadata is requested, but
// RBAC cannot express that. If an owner may not be read, the kind and name in the reference
// to it are used, which the pod itself has. For a ReplicaSet created by a Deployment or a
// Rollout, the pod has the hash, and the name without the hash is the name of the Deployment. Pods of a JobSet
// and of a LeaderWorkerSet have its name in a label.
//
// RBAC cannot restrict ResourceSlices to a node; the field selector does that.
package kubeapi
