// Package scheduler has the words and sums that all schedulers share: in which state a job is, why
// it waits, and where there is room. A job is what the scheduler places: a Slurm job, a pod.
package scheduler

// State is the state of a job.
type State string

// The states of a job. It has its devices from Starting to Stopping.
const (
	Held      State = "held"      // nobody schedules it until somebody releases it: a gate, a hold
	Pending   State = "pending"   // waits for its devices
	Starting  State = "starting"  // has its devices, but nothing runs yet
	Running   State = "running"   // runs
	Suspended State = "suspended" // is stopped and may go on
	Stopping  State = "stopping"  // ends, and still has its devices
	Finished  State = "finished"  // ended, but is still known
)

// Has reports whether jobs in this state have their devices.
func (s State) Has() bool {
	return s == Starting || s == Running || s == Suspended || s == Stopping
}

// Waits reports whether jobs in this state wait for devices.
func (s State) Waits() bool { return s == Held || s == Pending }

// Reason is why a job waits. Each waiting job has one.
type Reason string

// The reasons of waiting.
const (
	Gated       Reason = "held"        // a gate, or held by a user or an administrator
	Device      Reason = "gpu"         // too few free devices on any one node
	CPU         Reason = "cpu"         // nodes with enough free devices have too little CPU
	Memory      Reason = "memory"      // the same of memory
	Storage     Reason = "storage"     // the same of ephemeral storage
	Slots       Reason = "pods"        // the same of pods: the node has its maximum
	Ports       Reason = "ports"       // the same of ports of the host
	Resources   Reason = "resources"   // something is taken, and the scheduler does not say what
	Taint       Reason = "taint"       // nodes with enough free devices have a taint that the pod does not tolerate
	Affinity    Reason = "affinity"    // selector, affinity or spread of the job exclude them
	Unavailable Reason = "unavailable" // they are down, not ready, drained, cordoned or reserved
	Volume      Reason = "volume"      // a volume is missing or elsewhere
	Claim       Reason = "claim"       // a claim of devices (DRA) cannot be allocated
	Gang        Reason = "gang"        // the job waits for the others of its group
	Quota       Reason = "quota"       // a quota or limit of the user, team or queue is reached
	Priority    Reason = "priority"    // jobs with a higher priority are first
	Preempting  Reason = "preempting"  // jobs were evicted for it, and have not ended yet
	Dependency  Reason = "dependency"  // another job has to end first
	Later       Reason = "begin_time"  // it asked for a later start
	License     Reason = "license"     // no license is free
	New         Reason = "new"         // the scheduler has not looked at it yet, or not since there is room
	Other       Reason = "other"       // something else
)

// Cause is why nobody can use a free device.
type Cause string

// The causes, in the order in which they count.
const (
	Unhealthy   Cause = "unhealthy" // the device is broken, and its node does not offer it
	NotReady    Cause = "not_ready" // the node is down
	Cordoned    Cause = "cordoned"  // the node takes no new jobs
	Tainted     Cause = "taint"     // no job that asks for devices tolerates the taints of the node
	LacksCPU    Cause = "cpu"       // the node has too little CPU for them
	LacksMemory Cause = "memory"    // the node has too little memory for them
)

// DeviceState is the state of a whole device. Each is in one.
type DeviceState string

// The states of a device.
const (
	Allocated DeviceState = "allocated" // a job has it
	Idle      DeviceState = "free"      // nobody has it, and its node takes jobs
	Drained   DeviceState = "drained"   // nobody has it, and its node takes no new jobs
	Down      DeviceState = "down"      // nobody has it, and it or its node is broken
)
