package accounting

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/slurm"
)

// columns are the columns requested from sacct. The name, which the user chooses, comes last.
var columns = []string{
	"JobIDRaw", "JobID", "Cluster", "User", "Account", "Partition", "QOS", "State", "ExitCode",
	"Submit", "Eligible", "Start", "End", "ElapsedRaw", "Suspended", "NNodes", "AllocCPUS",
	"AllocTRES", "ReqTRES", "NodeList", "JobName",
}

// maxRow bounds a row in bytes; a node list or a name may be long.
const maxRow = 1 << 20

// parseText parses the table of sacct -p or -P, including the header that names the columns, and
// calls each for every job row; it skips job steps. (slurm.ParseJobsText parses the records of
// scontrol.) A name may have any number of lines: a row ends when it has all columns. Times are Unix
// seconds, or local times in zone. Unreadable rows are skipped and reported as an error after the
// rest.
func parseText(r io.Reader, delimiter string, zone *time.Location, each func(Job) error) error {
	in := bufio.NewReaderSize(r, 1<<16)
	head, err := readLine(in)
	if err != nil {
		return fmt.Errorf("sacct wrote no header: %w", err)
	}
	head, closed := strings.CutSuffix(head, delimiter) // -p adds a trailing delimiter
	names := strings.Split(head, delimiter)
	at := map[string]int{}
	for i, name := range names {
		if _, twice := at[name]; !twice {
			at[name] = i
		}
	}
	if _, ok := at["State"]; !ok {
		return fmt.Errorf("sacct wrote no header: %.100q", slurm.Text(head))
	}
	want := len(names) - 1
	if closed {
		want++
	}
	bad := 0
	var firstBad error
	for {
		row, err := readRow(in, delimiter, want)
		if errors.Is(err, io.EOF) {
			break
		}
		var j Job
		ok := false
		if err == nil {
			fields := strings.Split(strings.TrimSuffix(row, delimiter), delimiter)
			j, ok, err = parseRow(fields, at, zone)
		}
		if errors.Is(err, errRow) {
			if bad++; firstBad == nil {
				firstBad = err
			}
			continue
		}
		if err != nil {
			return err
		}
		if ok {
			if err := each(j); err != nil {
				return err
			}
		}
	}
	if bad > 0 {
		return &unreadableError{bad, firstBad}
	}
	return nil
}

// errRow marks an error of a single row.
var errRow = errors.New("cannot read a row of sacct")

// unreadableError reports skipped rows.
type unreadableError struct {
	rows  int
	first error
}

func (e *unreadableError) Error() string {
	return fmt.Sprintf("skipped %d rows: %v", e.rows, e.first)
}

func readLine(in *bufio.Reader) (string, error) {
	var b []byte
	for {
		part, err := in.ReadSlice('\n')
		b = append(b, part...)
		switch {
		case err == nil:
			return string(b[:len(b)-1]), nil
		case errors.Is(err, bufio.ErrBufferFull) && len(b) <= maxRow:
		case errors.Is(err, io.EOF) && len(b) > 0:
			return string(b), nil
		case errors.Is(err, bufio.ErrBufferFull):
			return "", fmt.Errorf("%w: a line is longer than %d bytes", slurm.ErrTooLong, maxRow)
		default:
			return "", err
		}
	}
}

// readRow joins lines until the row has all its delimiters. A delimiter never spans lines, so each
// line is counted once: a name may consist of a million line breaks.
func readRow(in *bufio.Reader, delimiter string, want int) (string, error) {
	var row strings.Builder
	for n := 0; ; {
		line, err := readLine(in)
		if errors.Is(err, io.EOF) && row.Len() > 0 {
			return "", errors.New("the output of sacct ends within a row") // the rows after it are missing too
		}
		if err != nil {
			return "", err
		}
		row.WriteString(line)
		n += strings.Count(line, delimiter)
		switch {
		case n > want:
			return "", fmt.Errorf("%w: too many columns", errRow)
		case n == want:
			return row.String(), nil
		case row.Len() > maxRow:
			return "", fmt.Errorf("%w: longer than %d bytes", errRow, maxRow)
		}
		row.WriteByte('\n')
	}
}

func parseRow(fields []string, at map[string]int, zone *time.Location) (j Job, ok bool, err error) {
	field := func(name string) string {
		if i, ok := at[name]; ok && i < len(fields) {
			return fields[i]
		}
		return ""
	}
	text := func(name string) string { return slurm.Text(field(name)) }
	when := func(name string) time.Time {
		t, bad := parseTime(field(name), zone)
		err = errors.Join(err, bad)
		return t
	}
	count := func(name string) int64 {
		n, bad := strconv.ParseUint(field(name), 10, 64)
		if bad != nil || n > maxCount {
			return 0
		}
		return int64(n)
	}
	id, bad := slurm.ParseJobID(text("JobID"))
	if bad != nil {
		return Job{}, false, fmt.Errorf("%w: %w", errRow, bad)
	}
	if id.Step != "" {
		return Job{}, false, nil
	}
	j = Job{
		Job: slurm.Job{
			ID: text("JobIDRaw"), Cluster: text("Cluster"), Name: text("JobName"), User: text("User"), Account: text("Account"),
			Partition: text("Partition"), QOS: text("QOS"), State: text("State"), NodeList: text("NodeList"),
			Submit: when("Submit"), Eligible: when("Eligible"), Start: when("Start"), End: when("End"),
			Nodes: count("NNodes"), CPUs: count("AllocCPUS"),
		},
		Elapsed: time.Duration(count("ElapsedRaw")) * time.Second,
	}
	if j.ID == "" {
		j.ID = id.Job
	}
	if id.Tasks != "" {
		j.ArrayJobID, j.ArrayTaskID = id.Job, id.Tasks
	}
	if id.Component != "" {
		j.HetJobID, j.HetOffset = id.Job, id.Component
	}
	var badSpan error
	j.Suspended, badSpan = parseSpan(field("Suspended"))
	if code, signal, found := strings.Cut(field("ExitCode"), ":"); found {
		c, bad1 := strconv.ParseUint(code, 10, 16)
		s, bad2 := strconv.ParseUint(signal, 10, 16)
		j.Exit, j.Signal, j.ExitKnown = int(c), int(s), bad1 == nil && bad2 == nil
	}
	allocated, _ := slurm.ParseGRES(onlyGRES(field("AllocTRES"))) // unparsable entries are not GPUs
	requested, _ := slurm.ParseGRES(onlyGRES(field("ReqTRES")))
	j.devices(allocated, requested)
	if err = errors.Join(err, badSpan); err != nil {
		return Job{}, false, fmt.Errorf("%w: job %s: %w", errRow, j.ID, err)
	}
	if !j.finish() {
		return Job{}, false, fmt.Errorf("%w: job %.20q has no ID or state", errRow, j.ID)
	}
	return j, true, nil
}

// onlyGRES returns the generic resources of a list such as cpu=2,gres/gpu=1,mem=4G.
func onlyGRES(tres string) string {
	var out []string
	for one := range strings.SplitSeq(tres, ",") {
		if strings.HasPrefix(one, "gres/") {
			out = append(out, one)
		}
	}
	return strings.Join(out, ",")
}

// parseTime parses Unix seconds, as SLURM_TIME_FORMAT=%s writes, or a local time in zone such as
// 2026-11-15T09:17:12. None and Unknown are the zero time.
func parseTime(s string, zone *time.Location) (time.Time, error) {
	switch s {
	case "", "None", "Unknown", "N/A", "Invalid", "(null)":
		return time.Time{}, nil
	}
	if n, err := strconv.ParseUint(s, 10, 64); err == nil {
		return fromUnix(n), nil
	}
	t, err := time.ParseInLocation("2006-01-02T15:04:05", s, zone)
	if err != nil {
		return time.Time{}, fmt.Errorf("%.40q is not a time", s)
	}
	return t.UTC(), nil
}

// parseSpan parses the time a job was suspended.
func parseSpan(s string) (time.Duration, error) {
	d, err := slurm.ParseSpan(s)
	if err == nil && d > maxCount*time.Second {
		err = fmt.Errorf("%.40q is not a time span", s)
	}
	if err != nil {
		return 0, err
	}
	return d, nil
}
