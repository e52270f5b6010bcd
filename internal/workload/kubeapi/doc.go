// Package kubeapi learns from the API server of Kubernetes what the kubelet does not say
// of the pods of this node: their uid and phase, who owns them, some of their labels, and
// what the devices of a claim are called elsewhere.
//
// # What it asks, and how often
//
//   - The pods of this node, by one list and one watch with the field selector
//     spec.nodeName. Pods of other nodes never get here. A pod is stripped as it arrives.
//   - The owners of those pods that somebody looked up: metadata only, each once, at most
//     one request a second. A node with 250 pods of which 8 have a GPU asks for the owners
//     of 8.
//   - The ResourceSlices of this node every minute, and the ResourceClaims of devices that
//     somebody looked up, only while claims are in use.
//   - This node every 5 minutes, metadata only.
//
// It has a client of its own for that. client-go would add 8 MB to the binary, and the
// generated clientset 32 MB more. See docs/adr/0007-a-small-kubernetes-client.md.
//
// # What it needs
//
// Every rule is optional, and State says what is lost without it. This is all of it:
//
//	apiVersion: rbac.authorization.k8s.io/v1
//	kind: ClusterRole
//	metadata: {name: gpumeter}
//	rules:
//	- apiGroups: [""]            # uid, phase, labels and the direct owner; without it all of this package
//	  resources: [pods]
//	  verbs: [get, list, watch]
//	- apiGroups: [""]            # zone and region
//	  resources: [nodes]
//	  verbs: [get]
//	- apiGroups: [apps]          # above the ReplicaSet: an Argo Rollout, an operator's own kind
//	  resources: [replicasets, deployments, statefulsets, daemonsets]
//	  verbs: [get]
//	- apiGroups: [batch]         # above the Job: CronJob, JobSet, TrainJob
//	  resources: [jobs, cronjobs]
//	  verbs: [get]
//	- apiGroups: [ray.io, kubeflow.org, trainer.kubeflow.org, jobset.x-k8s.io, leaderworkerset.x-k8s.io, argoproj.io]
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
// Add the kinds of other operators that make pods. Only their metadata is asked for, but
// RBAC cannot say so. Where an owner may not be asked for, the kind and name in the reference to it are used,
// which the pod itself has. Of a ReplicaSet that a Deployment or a Rollout made, the pod
// knows the hash, and the name without it is the name of the Deployment.
//
// ResourceSlices cannot be narrowed to a node by RBAC; the field selector does that.
package kubeapi
