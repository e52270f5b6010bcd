package fleet

import (
	"regexp"
	"slices"
)

// rowLabels are the labels that a row of a bill can have without any configuration: what Row keeps
// of the labels that agents set.
var rowLabels = []string{
	LabelUUID, LabelModel, LabelVendor, LabelPartition, LabelPartitionProfile,
	LabelHost, LabelHostType, LabelNode, LabelCluster, LabelCloudProvider, LabelRegion, LabelZone, LabelRack, LabelSimulated,
	LabelKind, LabelWorkload, LabelTeam, LabelWorkloadQueue, LabelNamespace, LabelPod, LabelPodUID, LabelContainer, LabelContainerID, LabelContainerName, LabelUser,
	LabelSlurmCluster, LabelSlurmJob, LabelSlurmUser, LabelSlurmAccount, LabelSlurmPartition,
	"k8s_deployment_name", "k8s_replicaset_name", "k8s_statefulset_name", "k8s_daemonset_name", "k8s_job_name", "k8s_cronjob_name",
	"slurm_job_name", "slurm_qos", "slurm_array_job_id", "slurm_array_task_id", "container_image_name",
}

// metadataLabel matches labels and annotations of Kubernetes objects as OpenTelemetry names them,
// such as k8s.node.label.pool. Users choose the last part.
var metadataLabel = regexp.MustCompile(`^k8s_[a-z]+_(label|annotation)_.`)

// RowLabels returns the labels that a row of a bill can have without any configuration, in order.
// Labels and annotations of Kubernetes objects are additional.
func RowLabels() []string { return slices.Sorted(slices.Values(rowLabels)) }

// IsRowLabel reports whether a row can have a label that agents set.
func IsRowLabel(name string) bool {
	return slices.Contains(rowLabels, name) || metadataLabel.MatchString(name)
}
