// Package fleet is the model of the reading side: it derives from a store of time series the
// devices of a fleet, their holders and their usage.
//
// Agents export device samples as time series; everything that reads those series back
// (the page, gpumeter top, gpumeter report, the fleet rules, quotas, waste findings and
// Slurm accounting) does so through this package, so that one question has one answer:
//
//   - the names of series and labels are constants here, those of schedulers in the package queue,
//     and in no other package;
//   - Reader.At returns every device as it is at one moment: power, temperature, utilization,
//     holders, idle time, price and health;
//   - idle, held and busy are defined once, in idle.go;
//   - Meter is the only conversion of counters to device time and energy.
//
// The package queries any query.Store, so the answers are the same on the hub's own store and on
// a Prometheus-compatible one. It knows no prices and no user interface.
package fleet

// Series of devices, one per physical device.
const (
	SeriesUp          = "gpu_up"
	SeriesInfo        = "gpu_info"
	SeriesHealth      = "gpu_health_ratio"
	SeriesUtilization = "gpu_utilization_ratio"
	SeriesSMActive    = "gpu_sm_active_ratio"
	SeriesDRAMActive  = "gpu_dram_active_ratio"
	SeriesMemoryUsed  = "gpu_memory_used_bytes"
	SeriesMemoryTotal = "gpu_memory_total_bytes"
	SeriesPower       = "gpu_power_draw_watts"
	SeriesPowerLimit  = "gpu_power_limit_watts"
	SeriesTemperature = "gpu_temperature_celsius"
	SeriesClock       = "gpu_clock_frequency_hertz"

	SeriesThrottlePower   = "gpu_throttle_power_active"
	SeriesThrottleThermal = "gpu_throttle_thermal_active"
	SeriesRecoveryAction  = "gpu_recovery_action"
	SeriesRowRemapPending = "gpu_row_remap_pending"
	SeriesXIDErrors       = "gpu_xid_errors_total"
)

// Series of components of a device: sensors, pipes, clock domains and partitions. They do not add
// up to the device.
const (
	SeriesPipeActive        = "gpu_pipe_active_ratio"
	SeriesSensorTemperature = "gpu_sensor_temperature_celsius"
	SeriesClockDomain       = "gpu_clock_domain_frequency_hertz"

	SeriesPartitionUp          = "gpu_partition_up"
	SeriesPartitionUtilization = "gpu_partition_utilization_ratio"
	SeriesPartitionSMActive    = "gpu_partition_sm_active_ratio"
	SeriesPartitionPipeActive  = "gpu_partition_pipe_active_ratio"
	SeriesPartitionMemoryUsed  = "gpu_partition_memory_used_bytes"
	SeriesPartitionMemoryTotal = "gpu_partition_memory_total_bytes"
)

// Series of workloads. Allocation and the two series of time without a holder add up to the
// device.
const (
	SeriesAllocation      = "gpu_allocation_ratio"
	SeriesAllocatedTime   = "gpu_workload_allocated_time_seconds_total"
	SeriesUnallocated     = "gpu_unallocated_ratio"
	SeriesUnallocatedTime = "gpu_unallocated_time_seconds_total"
	SeriesActiveTime      = "gpu_workload_active_time_seconds_total"
	SeriesIdleTime        = "gpu_workload_idle_time_seconds_total"
	SeriesEnergy          = "gpu_workload_energy_joules_total"

	SeriesWorkloadUtilization = "gpu_workload_utilization_ratio"
	SeriesWorkloadMemory      = "gpu_workload_memory_used_bytes"
	SeriesWorkloadPower       = "gpu_workload_power_draw_watts"
)

// Series of inference engines. All of them name the engine, its machine and its workload, and those about
// requests and tokens also the model. What routers and gateways saw of the same requests has other names.
const (
	SeriesEngineUp     = "inference_scrape_up"
	SeriesEngineDevice = "inference_engine_device"

	SeriesRequests      = "inference_request_count"
	SeriesFinished      = "inference_request_finished_total"
	SeriesTokensIn      = "inference_token_input_total"
	SeriesTokensOut     = "inference_token_output_total"
	SeriesPrefixHits    = "inference_prefix_cache_hits_total"
	SeriesPrefixQueries = "inference_prefix_cache_queries_total"
	SeriesKVCache       = "inference_kv_cache_utilization_ratio"

	SeriesGatewayTokens = "inference_frontend_token_total" // of routers and gateways, by LabelTokenType
)

// Histograms of inference engines. A histogram has no series of its own name: see Buckets.
const (
	HistogramFirstToken = "gen_ai_server_time_to_first_token_seconds"
	HistogramPerToken   = "gen_ai_server_time_per_output_token_seconds"
	HistogramRequest    = "gen_ai_server_request_duration_seconds"
	HistogramInterToken = "inference_inter_token_latency_seconds"
	HistogramQueue      = "inference_request_queue_duration_seconds"
	HistogramPrefill    = "inference_request_prefill_duration_seconds"

	// Of routers and gateways.
	HistogramFrontFirstToken = "inference_frontend_time_to_first_token_seconds"
	HistogramFrontRequest    = "inference_frontend_request_duration_seconds"
)

// Buckets returns the name of the series that have the buckets of a histogram.
func Buckets(histogram string) string { return histogram + "_bucket" }

// HistogramSum returns the name of the series that have the sums of a histogram.
func HistogramSum(histogram string) string { return histogram + "_sum" }

// HistogramCount returns the name of the series that count the values of a histogram.
func HistogramCount(histogram string) string { return histogram + "_count" }

// Other series that agents export and the hub reads.
const (
	SeriesAgentStart  = "gpumeter_agent_start_time_seconds"
	SeriesAttribution = "gpumeter_attribution_status"
	SeriesCollectives = "nccl_collective_sequence_total"
)

// Series that the hub writes about the fleet.
const (
	SeriesQuotaUsed  = "gpumeter_quota_used"
	SeriesQuotaLimit = "gpumeter_quota_limit"
	SeriesFinding    = "gpumeter_fleet_finding"

	SeriesBurnRate   = "gpumeter_slo_burn_rate"
	SeriesBudgetLeft = "gpumeter_slo_budget_remaining_ratio"
	SeriesObjective  = "gpumeter_slo_objective_ratio"
	SeriesThreshold  = "gpumeter_slo_threshold_seconds"
)

// Labels of series that the hub writes about objectives.
const (
	LabelObjective    = "gpumeter_slo_objective" // such as ttft_p95
	LabelBurnWindow   = "gpumeter_slo_window"    // such as 5m
	LabelBurnSeverity = "gpumeter_slo_severity"  // of a finding: page or ticket
)

// LabelName holds the name of a series.
const LabelName = "__name__"

// Labels of the device that a series is about.
const (
	LabelUUID             = "gpu_uuid"
	LabelIndex            = "gpu_index"
	LabelModel            = "gpu_model"
	LabelVendor           = "gpu_vendor"
	LabelPartition        = "gpu_partition_id"
	LabelPartitionProfile = "gpu_partition_profile"
)

// Labels of the machine that a device is in.
const (
	LabelHost          = "host_name"
	LabelHostType      = "host_type"
	LabelNode          = "k8s_node_name"
	LabelCluster       = "k8s_cluster_name"
	LabelCloudProvider = "cloud_provider"
	LabelRegion        = "cloud_region"
	LabelZone          = "cloud_availability_zone"
	LabelRack          = "rack"
	LabelSimulated     = "gpumeter_simulated"
)

// Labels of the workload that holds or uses a device.
const (
	LabelKind           = "gpu_workload_kind"
	LabelWorkload       = "gpu_workload_name"
	LabelTeam           = "gpu_workload_team"
	LabelWorkloadQueue  = "gpu_workload_queue"
	LabelNamespace      = "k8s_namespace_name"
	LabelPod            = "k8s_pod_name"
	LabelPodUID         = "k8s_pod_uid"
	LabelContainer      = "k8s_container_name"
	LabelContainerID    = "container_id"
	LabelContainerName  = "container_name"
	LabelUser           = "user_name"
	LabelSlurmCluster   = "slurm_cluster"
	LabelSlurmJob       = "slurm_job_id"
	LabelSlurmUser      = "slurm_user"
	LabelSlurmAccount   = "slurm_account"
	LabelSlurmPartition = "slurm_partition"
	LabelShareBasis     = "gpu_share_basis"
)

// Labels of inference engines and of their series.
const (
	LabelEngine      = "inference_engine_id" // unique on its host
	LabelProvider    = "gen_ai_provider_name"
	LabelServedModel = "gen_ai_request_model"
	LabelTenant      = "inference_tenant" // who asked, if the engine or a gateway says
	LabelTokenType   = "gen_ai_token_type"
	LabelState       = "inference_request_state"
	LabelOutcome     = "inference_outcome"
	LabelTier        = "inference_cache_tier"
	LabelWeight      = "inference_inter_token_weight"
	LabelBucket      = "le" // the upper bound of a bucket

	LabelRankOfEngine = "inference_engine_rank"
	LabelFinishReason = "inference_finish_reason"
)

// Values of labels.
const (
	OutcomeSuccess = "success"
	OutcomeError   = "error"
	OutcomeAbort   = "abort"

	TokenInput  = "input"
	TokenOutput = "output"

	StateRunning = "running"
	StateWaiting = "waiting"
	TierGPU      = "gpu"
	WeightToken  = "token"

	PipeTensor = "tensor" // of LabelPipe
)

// Labels of individual series.
const (
	LabelSensor            = "gpu_temperature_sensor"
	LabelClockType         = "gpu_clock_type"
	LabelPipe              = "gpu_pipe"
	LabelXIDCode           = "gpu_xid_code"
	LabelArchitecture      = "gpu_architecture"
	LabelDriver            = "gpu_driver_version"
	LabelFirmware          = "gpu_firmware_version"
	LabelVBIOS             = "gpu_vbios_version"
	LabelPCI               = "gpu_pci_address"
	LabelNUMA              = "gpu_numa_node"
	LabelAttributionReason = "gpumeter_attribution_reason"
	LabelAttributionSource = "gpumeter_attribution_source"
	LabelCommunicator      = "comm_id_hash"
	LabelRank              = "rank"
	LabelRanks             = "nranks"
)

// Kinds of holders that are not workloads, as values of LabelKind.
const (
	KindUnallocated  = "unallocated"  // nobody holds the device
	KindUnattributed = "unattributed" // the device is in use by an unknown process
	KindOther        = "other"        // workloads beyond the cardinality limit, combined
	KindNotSeen      = "not seen"     // nobody saw the device; in no series, only in rows of bills
	KindSlurmJob     = "slurm_job"
)

// IsWorkload reports whether a kind is that of a named workload.
func IsWorkload(kind string) bool {
	return IsHeld(kind) && kind != KindUnattributed && kind != KindOther
}

// IsHeld reports whether time of this kind was held: by a workload, by several beyond the cardinality
// limit, or by a process of an unknown owner. Bills, quotas and pages count the same rows.
func IsHeld(kind string) bool { return kind != "" && kind != KindUnallocated && kind != KindNotSeen }
