package queue

// Prefix is how all names of series here begin.
const Prefix = "scheduler_"

// slurm is the LabelScheduler of Slurm.
const slurm = "slurm"

// Kubernetes is the LabelScheduler of what is derived from the objects of Kubernetes: its queues are namespaces.
const Kubernetes = "kubernetes"

// Series of clusters, as their schedulers see them. They have LabelScheduler and LabelCluster, and none of the labels
// of a device or a machine.
const (
	SeriesUp          = "scheduler_up"
	SeriesJobs        = "scheduler_job_count"
	SeriesPendingJobs = "scheduler_job_pending_count"
	SeriesPending     = "scheduler_gpu_pending"
	SeriesAllocated   = "scheduler_gpu_allocated"
	SeriesDevices     = "scheduler_gpu_count"
	SeriesStranded    = "scheduler_gpu_stranded"
	SeriesPlaceable   = "scheduler_gpu_placeable"
	SeriesFragmented  = "scheduler_gpu_fragmentation_ratio"
	SeriesUnusable    = "scheduler_gpu_unusable_ratio"
	SeriesWaiting     = "scheduler_waiting_gpu"
	SeriesWaitingTime = "scheduler_waiting_time_seconds"
)

// Series of queues, as queueing systems count them.
const (
	SeriesUsed      = "scheduler_queue_gpu_used"
	SeriesNominal   = "scheduler_queue_gpu_nominal"
	SeriesLimit     = "scheduler_queue_gpu_limit"
	SeriesBorrowed  = "scheduler_queue_gpu_borrowed"
	SeriesQueued    = "scheduler_queue_gpu_pending"
	SeriesFairShare = "scheduler_queue_fair_share_ratio"
)

// Histograms of the time that jobs waited for their devices, then until they ran, and from their creation to their first work.
const (
	HistogramWait      = "scheduler_job_wait_duration_seconds"
	HistogramStartup   = "scheduler_job_startup_duration_seconds"
	HistogramFirstWork = "scheduler_job_first_work_duration_seconds"
)

// Labels of these series.
const (
	LabelScheduler   = "scheduler_type"
	LabelCluster     = "scheduler_cluster"
	LabelQueue       = "scheduler_queue"
	LabelTeam        = "scheduler_team"
	LabelModel       = "scheduler_gpu_type" // as the scheduler names it, not as the driver does
	LabelState       = "scheduler_job_state"
	LabelReason      = "scheduler_job_reason"
	LabelJob         = "scheduler_job_id"
	LabelJobName     = "scheduler_job_name"
	LabelDeviceState = "scheduler_gpu_state"
	LabelCause       = "scheduler_gpu_stranded_cause"
	LabelSize        = "scheduler_gpu_request"
)
