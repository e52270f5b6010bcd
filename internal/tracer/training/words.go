package training

// The names of the metrics that are observed from outside and may be reported instead.
const (
	MetricSteps        = "training.steps"
	MetricStepDuration = "training.step.duration"
	MetricTime         = "training.time"
	MetricCheckpoints  = "training.checkpoint.count"
	MetricCheckpointIO = "training.checkpoint.io"
	MetricRestarts     = "training.restarts"
	MetricLost         = "training.lost.time"
	MetricGoodput      = "training.goodput"
	MetricMFU          = "training.mfu"
)

// Kind is the kind of a metric.
type Kind string

// The kinds.
const (
	Counter   Kind = "sum"
	Gauge     Kind = "gauge"
	Durations Kind = "histogram"
)

// Word is one metric of the vocabulary of training.
type Word struct {
	Name, Unit string
	Kind       Kind
	// Once is set if all ranks of a job would say the same: only rank 0 reports it.
	Once bool
	// Low and High are the values that can be meant.
	Low, High float64
	// Observed is set if it is also observed from outside.
	Observed bool
	// Names are what training loops call it; see Named.
	Names []string
	Text  string
}

// most is the most that anything can be counted to.
const most = 1e18

// Words returns the vocabulary. Units in braces add nothing to the names of series in a store.
func Words() []Word { return vocabulary }

var vocabulary = []Word{
	{Name: MetricSteps, Unit: "{step}", Kind: Counter, Once: true, High: 1e12, Observed: true, Names: []string{"global_step", "train/global_step", "trainer/global_step", "step", "steps", "iteration"}, Text: "Steps: updates by the optimizer."},
	{Name: MetricStepDuration, Unit: "s", Kind: Durations, Once: true, High: 1e7, Observed: true, Names: []string{"step_time", "step_duration"}, Text: "Duration of steps."},
	{Name: "training.phase.duration", Unit: "s", Kind: Durations, Once: true, High: 1e7, Text: "Duration of the parts of a step, by `training.phase`: forward, backward, optimizer."},
	{Name: MetricTime, Unit: "s", Kind: Counter, High: 1e10, Observed: true, Text: "Time of each rank, by `training.activity`."},
	{Name: MetricCheckpoints, Unit: "{checkpoint}", Kind: Counter, High: 1e9, Observed: true, Text: "Checkpoints."},
	{Name: MetricCheckpointIO, Unit: "By", Kind: Counter, High: most, Observed: true, Text: "Bytes of checkpoints."},
	{Name: MetricRestarts, Unit: "{restart}", Kind: Counter, Once: true, High: 1e6, Observed: true, Text: "Restarts."},
	{Name: MetricLost, Unit: "s", Kind: Counter, High: 1e10, Observed: true, Text: "Time lost to restarts, by `training.lost.reason`."},
	{Name: MetricGoodput, Unit: "1", Kind: Gauge, High: 1, Observed: true, Names: []string{"goodput"}, Text: "Part of the time that was steps."},
	{Name: MetricMFU, Unit: "1", Kind: Gauge, High: 1, Observed: true, Names: []string{"mfu"}, Text: "Model FLOP/s utilization: FLOPs of the model in a step, divided by the time of the step and the peak of the device."},
	{Name: "training.tokens", Unit: "{token}", Kind: Counter, Once: true, High: most, Names: []string{"num_input_tokens_seen", "train/num_input_tokens_seen", "consumed_tokens", "tokens"}, Text: "Tokens that the job trained on, over all ranks."},
	{Name: "training.samples", Unit: "{sample}", Kind: Counter, Once: true, High: most, Names: []string{"consumed_samples", "consumed_train_samples", "samples"}, Text: "Samples that the job trained on, over all ranks."},
	{Name: "training.loss", Unit: "{loss}", Kind: Gauge, Once: true, Low: -1e9, High: 1e9, Names: []string{"loss", "train/loss", "train_loss", "lm loss", "lm-loss"}, Text: "Loss of the last step."},
	{Name: "training.gradient.norm", Unit: "{norm}", Kind: Gauge, Once: true, High: 1e12, Names: []string{"grad_norm", "train/grad_norm", "grad-norm"}, Text: "Norm of the gradients before they were clipped."},
}

// Named returns the word of a metric. Names that training loops use otherwise are known if loose is set.
func Named(name string, loose bool) (Word, bool) {
	for _, w := range vocabulary {
		if w.Name == name {
			return w, true
		}
		for _, n := range w.Names {
			if loose && n == name {
				return w, true
			}
		}
	}
	return Word{}, false
}
