package slo

// Name returns a cause for people.
func (c Cause) Name() string {
	return map[Cause]string{
		KVCache: "KV cache full", QueueLimit: "Limit of running requests", Prefill: "Prefill", Decode: "Decode, memory bandwidth", Host: "Host",
		PowerCap: "Power cap", Thermal: "Heat", Network: "Frontend and network", Unexplained: "Unexplained",
	}[c]
}

// Advice returns what to do about a cause.
func (c Cause) Advice() string {
	switch c {
	case KVCache:
		return "Add replicas, or make room in the KV cache: more or larger GPUs, quantized weights or cache, shorter prompts and outputs."
	case QueueLimit:
		return "Let the engine run more requests at a time, such as with --max-num-seqs of vLLM or --max-running-requests of SGLang, or add replicas."
	case Prefill:
		return "Add replicas, shorten prompts, or let the prefix cache have more of them."
	case Decode:
		return "Add replicas, use quantized weights, or run fewer requests at a time."
	case Host:
		return "Find out what the engine waits for: gpumeter explain on its node says whether it gets its CPUs."
	case PowerCap:
		return "Raise the power limit of the GPUs, or add replicas."
	case Thermal:
		return "Check the cooling of the GPUs."
	case Network:
		return "Look at the router or gateway in front of the engines: whether it queues, how it chooses an engine, and the network between them."
	}
	return "Look at the log of the engine, at its node, and at the network in front of it."
}
