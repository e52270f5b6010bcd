package queue

// because says in words why jobs wait, after "because", by reason.
var because = map[string]string{
	"held":        "somebody holds it, or its queue has not admitted it",
	"gpu":         "no node where it may run has enough free GPUs",
	"cpu":         "the nodes with enough free GPUs have too little CPU",
	"memory":      "the nodes with enough free GPUs have too little memory",
	"storage":     "the nodes with enough free GPUs have too little storage",
	"pods":        "the nodes with enough free GPUs run their maximum of pods",
	"ports":       "the nodes with enough free GPUs use its ports already",
	"resources":   "what it asks for is taken",
	"taint":       "it does not tolerate the taints of the nodes",
	"affinity":    "its selector, affinity or constraints exclude the nodes",
	"unavailable": "the nodes are cordoned, drained, reserved or down",
	"volume":      "a volume is missing, or in another place",
	"claim":       "a claim of devices cannot be allocated",
	"gang":        "it waits for the others of its group",
	"quota":       "a quota or limit is reached",
	"priority":    "jobs with a higher priority are first",
	"preempting":  "others were evicted for it and have not ended yet",
	"dependency":  "another job has to end first",
	"begin_time":  "it starts later",
	"license":     "no license is free",
	"new":         "the scheduler has not looked at it yet",
	"other":       "its scheduler has another reason",
}

// Because says why jobs wait with a reason of the vocabulary of schedulers; one that is unknown as it is.
func Because(reason string) string {
	if text, ok := because[reason]; ok {
		return text
	}
	return reason
}
