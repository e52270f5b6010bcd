package fleet

// EngineLabels are the labels that tell apart what each engine says about a model for a workload, separated by commas.
func EngineLabels() string { return engineLabels }

// OwnerLabels are the labels that OwnerOf reads, separated by commas.
func OwnerLabels() string { return ownerLabels }

// HistogramSum returns the name of the series that have the sums of a histogram.
func HistogramSum(histogram string) string { return histogram + "_sum" }

// HistogramCount returns the name of the series that count the values of a histogram.
func HistogramCount(histogram string) string { return histogram + "_count" }
