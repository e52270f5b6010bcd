package inference

// Kind is how values of a metric behave.
type Kind int

const (
	// Counter only grows. Counters add up.
	Counter Kind = iota
	// UpDown goes up and down, and adds up: requests that run.
	UpDown
	// Gauge does not add up: a ratio.
	Gauge
	// Histogram has all values since the engine started, by bucket.
	Histogram
)

// String returns the name of the kind, as OpenTelemetry has it.
func (k Kind) String() string {
	return [...]string{"counter", "updowncounter", "gauge", "histogram"}[k]
}

// Metric is a name of the vocabulary.
type Metric struct {
	Name, Unit  string
	Kind        Kind
	Description string
}

// The vocabulary. OpenTelemetry has names for three of these; docs/inference.md says what each means.
var (
	timeToFirstToken = &Metric{"gen_ai.server.time_to_first_token", "s", Histogram, "Time from the arrival of a request to its first token."}
	timePerToken     = &Metric{"gen_ai.server.time_per_output_token", "s", Histogram, "Time per output token after the first, a value per request."}
	requestDuration  = &Metric{"gen_ai.server.request.duration", "s", Histogram, "Time from the arrival of a request to its end."}

	interToken        = &Metric{"inference.inter_token.latency", "s", Histogram, "Time between two deliveries of tokens of a request. With the weight step a delivery is one value, whatever the number of tokens; with the weight token each token is."}
	queueDuration     = &Metric{"inference.request.queue.duration", "s", Histogram, "Time that a request waited before the engine began with it."}
	prefillDuration   = &Metric{"inference.request.prefill.duration", "s", Histogram, "Time from the start of a request to its first token."}
	decodeDuration    = &Metric{"inference.request.decode.duration", "s", Histogram, "Time from the first token of a request to its last."}
	inferenceDuration = &Metric{"inference.request.inference.duration", "s", Histogram, "Time that a request was worked on: prefill and decode."}

	// Engines without histograms of requests count seconds.
	requestTime = &Metric{"inference.request.time", "s", Counter, "Time that finished requests took, of engines without a histogram."}
	queueTime   = &Metric{"inference.request.queue.time", "s", Counter, "Time that finished requests waited, of engines without a histogram."}
	prefillTime = &Metric{"inference.request.prefill.time", "s", Counter, "Time that prompts took, of engines without a histogram."}
	decodeTime  = &Metric{"inference.request.decode.time", "s", Counter, "Time that output took, of engines without a histogram."}
	computeTime = &Metric{"inference.request.inference.time", "s", Counter, "Time that finished requests were worked on, of engines without a histogram."}

	tokensIn       = &Metric{"inference.token.input", "{token}", Counter, "Tokens of prompts, cached or not."}
	tokensBySource = &Metric{"inference.token.input.by_source", "{token}", Counter, "Tokens of prompts by where they came from, such as computed or from a cache."}
	tokensOut      = &Metric{"inference.token.output", "{token}", Counter, "Tokens that were generated."}
	requestTokens  = &Metric{"inference.request.token", "{token}", Histogram, "Tokens per request."}

	requests    = &Metric{"inference.request.count", "{request}", UpDown, "Requests by state. Their sum is what the engine has accepted and not finished."}
	finished    = &Metric{"inference.request.finished", "{request}", Counter, "Finished requests, whatever their outcome."}
	preemptions = &Metric{"inference.request.preemptions", "{preemption}", Counter, "How often a running request had to make room for others."}

	responses = &Metric{"inference.http.response", "{response}", Counter, "Answers of the engine's web server to requests for inference, by status. Requests that it turned away are nowhere else; all others are in inference.request.finished, too."}

	batchSize   = &Metric{"inference.batch.size", "{request}", Histogram, "Requests per batch."}
	batchTokens = &Metric{"inference.batch.token", "{token}", Histogram, "Tokens per step of the engine."}
	batchMean   = &Metric{"inference.batch.size.mean", "{request}", Gauge, "Mean number of requests per batch since the engine started. Means do not add up."}

	cacheUtilization = &Metric{"inference.kv_cache.utilization", "1", Gauge, "Part of the key-value cache that is in use, 0 to 1. It does not add up."}
	cacheUsage       = &Metric{"inference.kv_cache.usage", "{token}", UpDown, "Tokens in the key-value cache."}
	cacheLimit       = &Metric{"inference.kv_cache.limit", "{token}", UpDown, "Tokens that fit into the key-value cache."}

	prefixQueries = &Metric{"inference.prefix_cache.queries", "{token}", Counter, "Tokens of prompts that were looked up in the prefix cache. vLLM before 0.9 counts blocks."}
	prefixHits    = &Metric{"inference.prefix_cache.hits", "{token}", Counter, "Tokens of prompts that the prefix cache had, in the unit of the queries."}
	prefixRatio   = &Metric{"inference.prefix_cache.hit_ratio", "1", Gauge, "Hit ratio that the engine computes itself, where it does not count. It does not add up."}

	drafts             = &Metric{"inference.spec_decode.drafts", "{draft}", Counter, "Drafts of speculative decoding."}
	draftTokens        = &Metric{"inference.spec_decode.draft_tokens", "{token}", Counter, "Tokens that speculative decoding proposed."}
	acceptedTokens     = &Metric{"inference.spec_decode.accepted_tokens", "{token}", Counter, "Proposed tokens that were accepted."}
	acceptedByPosition = &Metric{"inference.spec_decode.accepted_tokens.by_position", "{token}", Counter, "Proposed tokens that were accepted, by position in the draft."}
	acceptanceRatio    = &Metric{"inference.spec_decode.acceptance_ratio", "1", Gauge, "Ratio of accepted tokens that the engine computes itself, where it does not count. It does not add up."}

	adapters     = &Metric{"inference.lora.adapter.count", "{adapter}", UpDown, "LoRA adapters in use."}
	adapterLimit = &Metric{"inference.lora.adapter.limit", "{adapter}", UpDown, "LoRA adapters that can be in use at a time."}

	loadTime = &Metric{"inference.model.load.duration", "s", Gauge, "Time that loading the model took."}

	// What a front door saw of the same requests: a router, a gateway, an HTTP proxy. Their names differ,
	// so that no request is counted twice.
	frontTimeToFirstToken = &Metric{"inference.frontend.time_to_first_token", "s", Histogram, "Time to the first token as a router or gateway saw it."}
	frontInterToken       = &Metric{"inference.frontend.inter_token.latency", "s", Histogram, "Time between two tokens as a router or gateway saw it."}
	frontDuration         = &Metric{"inference.frontend.request.duration", "s", Histogram, "Duration of requests as a router or gateway saw it."}
	frontRequests         = &Metric{"inference.frontend.request.count", "{request}", UpDown, "Requests that a router or gateway has accepted and not finished, by state."}
	frontFinished         = &Metric{"inference.frontend.request.finished", "{request}", Counter, "Requests that a router or gateway has finished."}
	frontTokens           = &Metric{"inference.frontend.token", "{token}", Counter, "Tokens that a router or gateway counted."}
)

// What is known about an engine, and about the reading of its page.
var (
	engineInfo = &Metric{"inference.engine.info", "{engine}", Gauge, "1, with what an engine says of itself: its version, over how many devices it is spread, how long a context may be. What it does not say is absent."}

	OnDevice = &Metric{"inference.engine.device", "{gpu}", Gauge, "1 for each device or partition that an engine works on. Joins the engine with its devices and its owner; counting it counts a shared device once per engine."}
	Up       = &Metric{"inference.scrape.up", "{target}", Gauge, "1 if the metrics page of the engine could be read, else 0."}
	ReadTime = &Metric{"inference.scrape.duration", "s", Gauge, "How long reading the page took."}
	Unmapped = &Metric{"inference.scrape.samples.unmapped", "{sample}", Gauge, "Samples of the page that the vocabulary has no name for."}
	Rejected = &Metric{"inference.scrape.samples.rejected", "{sample}", Gauge, "Samples of histograms that were cut off or do not add up, and samples beyond the limit of a page."}
)

// Metrics returns the vocabulary, in the order in which people read it.
func Metrics() []*Metric {
	return []*Metric{
		timeToFirstToken, timePerToken, requestDuration, interToken, queueDuration, prefillDuration, decodeDuration, inferenceDuration,
		requestTime, queueTime, prefillTime, decodeTime, computeTime,
		tokensIn, tokensBySource, tokensOut, requestTokens, requests, finished, preemptions, responses, batchSize, batchTokens, batchMean,
		cacheUtilization, cacheUsage, cacheLimit, prefixQueries, prefixHits, prefixRatio,
		drafts, draftTokens, acceptedTokens, acceptedByPosition, acceptanceRatio, adapters, adapterLimit, loadTime, modelLoaded, modelMemory,
		frontTimeToFirstToken, frontInterToken, frontDuration, frontRequests, frontFinished, frontTokens,
		engineInfo, OnDevice, Up, ReadTime, Unmapped, Rejected,
	}
}

// Attributes of points.
const (
	AttrProvider = "gen_ai.provider.name"
	AttrModel    = "gen_ai.request.model"
	AttrToken    = "gen_ai.token.type"
	AttrError    = "error.type"

	AttrState    = "inference.request.state"
	AttrReason   = "inference.finish_reason"
	AttrOutcome  = "inference.outcome"
	AttrSource   = "inference.token.source"
	AttrTier     = "inference.cache.tier"
	AttrWeight   = "inference.inter_token.weight"
	AttrPosition = "inference.spec_decode.position"
	AttrStatus   = "http.response.status_code"
	AttrClass    = "inference.http.status_class" // such as 5xx
	// AttrTenant is who asked, where an engine or a gateway labels it.
	AttrTenant = "inference.tenant"
	// AttrRank tells the engines behind one endpoint apart, such as data-parallel ranks, where values do
	// not add up.
	AttrRank = "inference.engine.rank"
	// What an engine says of itself.
	AttrVersion      = "inference.engine.version"
	AttrTensor       = "inference.engine.tensor_parallel.size"   // devices that divide each layer
	AttrPipeline     = "inference.engine.pipeline_parallel.size" // groups of devices that divide the layers
	AttrContext      = "inference.engine.context.limit"          // tokens
	AttrQuantization = "inference.engine.quantization"
	AttrCacheType    = "inference.engine.kv_cache.type"
	// AttrEngine identifies an engine on its host.
	AttrEngine = "inference.engine.id"
)

// Values of AttrOutcome.
const (
	Success = "success"
	Failure = "error"
	Abort   = "abort"
)
