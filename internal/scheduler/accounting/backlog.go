package accounting

import (
	"encoding/json"
	"io"

	"github.com/gpumeter/gpumeter/internal/slurm"
)

// parseDiag returns the size of the database backlog from slurmrestd's diag response.
func parseDiag(r io.Reader) (n int, ok bool, err error) {
	var answer struct {
		Statistics struct {
			Queue *slurm.Number `json:"dbd_agent_queue_size"`
		} `json:"statistics"`
	}
	if err := json.NewDecoder(r).Decode(&answer); err != nil {
		return 0, false, err
	}
	if answer.Statistics.Queue == nil {
		return 0, false, nil
	}
	v, ok := answer.Statistics.Queue.Get()
	return int(min(v, maxCount)), ok, nil
}
