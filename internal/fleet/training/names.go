package training

// Series of workloads that train. What a workload reports itself is not observed as well, so all may be added.
const (
	SeriesSteps        = "training_steps_total"
	SeriesTime         = "training_time_seconds_total"      // by LabelActivity
	SeriesLost         = "training_lost_time_seconds_total" // by LabelLost
	SeriesCheckpoints  = "training_checkpoint_count_total"
	SeriesCheckpointIO = "training_checkpoint_io_bytes_total"
	SeriesRestarts     = "training_restarts_total"
	SeriesMFU          = "training_mfu_ratio"
	SeriesTokens       = "training_tokens_total"
	SeriesSamples      = "training_samples_total"
	SeriesLoss         = "training_loss"
	SeriesGradient     = "training_gradient_norm"

	HistogramStep = "training_step_duration_seconds"
)

// Labels of these series.
const (
	LabelActivity = "training_activity"
	LabelLost     = "training_lost_reason"
	LabelSource   = "training_source"
)

// Reported is the value of LabelSource for what a workload says itself.
const Reported = "reported"
