package slurm

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpumeter/gpumeter/internal/slurm"
	"github.com/gpumeter/gpumeter/internal/workload"
	"github.com/gpumeter/gpumeter/internal/workload/cgroup"
)

// Config states where Slurm is found. All fields may be empty.
type Config struct {
	Root string // "/" or where the host's file system is mounted; empty means "/"
	Host string // host name, to find the node in slurm.conf
	Node string // name of this node in Slurm; empty: from slurm.conf or Host

	Conf     string // path of slurm.conf; empty: the usual places
	GresConf string // path of gres.conf; empty: next to slurm.conf
	JobMaps  string // directory of the files that a prolog writes; empty: none

	// Minors are prefixes of device files below /dev that end in a minor number: nvidia,
	// tenstorrent/. If neither gres.conf nor a driver defines the order of the devices, they
	// are ordered by minor number.
	Minors []string
	// Drivers lists the kernel drivers of each vendor. The devices of one vendor are numbered
	// together.
	Drivers [][]string

	Scontrol  string // path of scontrol, with squeue next to it; empty: the usual places
	REST      string // address of slurmrestd; empty: Slurm's tools are run instead
	RESTToken string // path of the file with its token
	RESTUser  string // owner of the token, if slurmrestd requires it
	Offline   bool   // the controller is not queried

	Steps    bool              // export the step id as an attribute
	Teams    map[string]string // by account; empty: the account is the team
	Refresh  time.Duration     // how often the controller is queried; 0: 30 seconds
	StaleFor time.Duration     // how long its last answer is used while it does not respond; 0: 15 minutes
	_        struct{}          // enforces keyed literals
}

const (
	// look is how often control groups and job maps are scanned, so that a job is known
	// before it uses a device. A scan takes a few dozen system calls.
	look = time.Second
	// again is how often the configuration is read, and how often a machine without Slurm
	// is checked for it.
	again = 30 * time.Second
)

// Source is a workload.Source for the Slurm jobs of this node.
type Source struct {
	cfg    Config
	places *cgroup.Finder[Place]

	mu      sync.Mutex
	present bool
	site    site
	ctl     *controller
	ctlErr  error // why ctl is nil
	node    *node
	here    here
	maps    []mapped
	mapsErr error
	gone    map[string]time.Time // jobs whose control group disappeared, and when
	found   map[Place]uint32     // processes of jobs without a control group here, one per step
	new     map[Place]Job        // jobs that no scan has seen, as a process of theirs says
	view    view
	unread  error // error of reading the control group of a process
	unreadT time.Time
}

// site is the content of the configuration files.
type site struct {
	conf    string // path of slurm.conf, if there is one
	cluster string
	node    string
	several bool // the machine is several nodes, and none was configured
	gres    gresConf
	devices []device
	err     error
}

var _ workload.Source = (*Source)(nil)

// New returns a Source. It knows nothing before Run.
func New(cfg Config) *Source {
	cfg.Root = cmp.Or(cfg.Root, "/")
	cfg.Refresh = cmp.Or(cfg.Refresh, 30*time.Second)
	cfg.StaleFor = cmp.Or(cfg.StaleFor, 15*time.Minute)
	return &Source{
		cfg: cfg, gone: map[string]time.Time{}, found: map[Place]uint32{}, new: map[Place]Job{},
		places: cgroup.NewFinder(filepath.Join(cfg.Root, "proc"), ParseCgroup),
	}
}

// Run learns until ctx ends. On a machine without Slurm it only checks for a few files
// every 30 seconds.
func (s *Source) Run(ctx context.Context) error {
	var asking sync.WaitGroup
	defer asking.Wait()
	var read time.Time
	for {
		wait := look
		if now := time.Now(); now.Sub(read) >= again {
			read = now
			if start := s.settle(); start != nil {
				asking.Go(func() { start.run(ctx, s.rebuild) })
			}
		}
		if s.isPresent() {
			s.scan()
		} else {
			wait = again
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

func (s *Source) isPresent() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.present
}

// usual are the usual locations of slurm.conf. The last ones are for nodes that receive it
// from the controller.
var usual = []string{
	"etc/slurm/slurm.conf", "etc/slurm-llnl/slurm.conf", "usr/local/etc/slurm.conf", "opt/slurm/etc/slurm.conf",
	"run/slurm/conf/slurm.conf", "var/spool/slurmd/conf-cache/slurm.conf", "var/spool/slurm/d/conf-cache/slurm.conf",
}

// settle reads the configuration, and returns the controller to start querying, if it is
// new.
func (s *Source) settle() *controller {
	here := readSite(s.cfg)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.node == nil || s.node.name != here.node {
		s.node = newNode(s.cfg.Root, here.node)
	}
	s.site = here
	s.present = here.conf != "" || s.cfg.REST != "" || s.cfg.JobMaps != "" || len(s.node.roots()) > 0
	if !s.present || s.ctl != nil || s.cfg.Offline {
		return nil
	}
	a, err := s.asker()
	if s.ctlErr = err; a == nil {
		return nil
	}
	s.ctl = newController(a, s.cfg.Refresh, s.cfg.StaleFor)
	return s.ctl
}

// asker returns how to query the controller, or nil and the reason.
func (s *Source) asker() (asker, error) {
	switch {
	case s.site.node == "":
		return nil, errors.New("this machine is not a node of the cluster")
	case s.cfg.REST != "":
		r, err := slurm.NewREST(s.cfg.REST, s.cfg.RESTToken, s.cfg.RESTUser)
		if err != nil {
			return nil, err
		}
		return rest{r, s.site.node}, nil
	}
	c := newCommand(s.cfg.Scontrol, s.site.conf, s.site.node)
	if c == nil {
		return nil, fs.ErrNotExist
	}
	return c, nil
}

// readSite reads slurm.conf and gres.conf.
func readSite(cfg Config) site {
	here := site{node: cfg.Node, conf: cfg.Conf}
	if here.conf == "" {
		for _, p := range usual {
			if path := filepath.Join(cfg.Root, p); exists(path) {
				here.conf = path
				break
			}
		}
	}
	var c cluster
	if here.conf != "" {
		lines, err := readConf(here.conf)
		c, here.err = parseCluster(lines), err
		here.cluster = c.Name
		if nodes := c.node(cfg.Host); here.node == "" && len(nodes) > 0 {
			here.node, here.several = nodes[0], len(nodes) > 1
		}
	}
	// A dynamic node is not in slurm.conf, and a container may not have the file.
	if here.node == "" && (here.conf == "" && cfg.REST != "" || len(newNode(cfg.Root, "").roots()) > 0) {
		here.node, _, _ = strings.Cut(cfg.Host, ".")
	}
	path := cfg.GresConf
	if path == "" && here.conf != "" {
		path = filepath.Join(filepath.Dir(here.conf), "gres.conf")
	}
	var lines []setting
	if path != "" {
		var err error
		if lines, err = readConf(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			here.err = errors.Join(here.err, err)
		}
	}
	here.gres = parseGresConf(lines, here.node, c.gres(here.node))
	here.devices = here.gres.order(machine{cfg.Root, cfg.Drivers})
	return here
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil || errors.Is(err, fs.ErrPermission)
}

// scan updates the jobs of this node.
func (s *Source) scan() {
	s.mu.Lock()
	look := maps.Clone(s.found)
	s.mu.Unlock()
	found, gone := s.node.scan() // only Run modifies s.node
	found.other, look = s.node.look(look)
	found.denied = s.node.last.denied
	var list []mapped
	var err error
	if s.cfg.JobMaps != "" {
		list, err = readMaps(s.cfg.JobMaps)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for _, id := range gone {
		s.gone[id] = now
	}
	for id, t := range s.gone {
		left := slices.ContainsFunc(list, func(m mapped) bool { return m.Job.ID == id }) // left behind by a failed epilog
		if found.jobs[id] != nil || !left && now.Sub(t) > s.cfg.StaleFor+s.cfg.Refresh {
			delete(s.gone, id)
		}
	}
	maps.DeleteFunc(s.found, func(p Place, pid uint32) bool { return pid != look[p] }) // later ones are for the next scan
	s.here, s.maps, s.mapsErr = found, list, err
	s.build()
	maps.DeleteFunc(s.new, func(p Place, _ Job) bool {
		_, known := s.view.jobs[p.Job]
		return known || len(s.new) >= maxJobs
	})
}

// Process implements workload.Source.
func (s *Source) Process(pid uint32) (workload.Workload, bool) {
	if !s.isPresent() {
		return workload.Workload{}, false
	}
	p, ok, err := s.places.Find(pid)
	early := Job{Job: slurm.Job{ID: p.Job}}
	if ok && err == nil {
		early = s.early(pid, p)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // processes exit all the time
		s.unread, s.unreadT = err, time.Now()
	}
	if err != nil || !ok {
		return workload.Workload{}, false
	}
	// A process of another node of the machine names that node's devices.
	elsewhere := p.Node != "" && s.site.node != "" && p.Node != s.site.node
	if s.here.jobs[p.Job] == nil && !elsewhere && len(s.found) < maxJobs {
		p := Place{Job: p.Job, Step: p.Step}
		if _, twice := s.found[p]; !twice {
			s.found[p] = pid
		}
	}
	w, known := s.view.jobs[p.Job]
	if !known {
		w = early.workload(s.view.cluster, s.cfg.Teams)
		if s.ctl != nil {
			s.ctl.want(p.Job)
		}
	}
	if s.cfg.Steps && p.Step != "" {
		w.Attributes = withStep(w.Attributes, p.Step)
	}
	return w, true
}

// early returns what a process says about a job that no scan has seen yet: a job that begins on a device must not have
// other names until the next scan. A process that does not answer is asked once.
func (s *Source) early(pid uint32, p Place) Job {
	s.mu.Lock()
	job, ok := s.new[p]
	_, known := s.view.jobs[p.Job]
	n := s.node
	s.mu.Unlock()
	if known || ok || n == nil {
		return job
	}
	job = Job{Job: slurm.Job{ID: p.Job}}
	if env, err := n.patient(pid); err == nil && env.JobID == p.Job {
		job = env.job(p.Job)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.new) < maxJobs {
		s.new[p] = job
	}
	return job
}

func withStep(attributes map[string]string, step string) map[string]string {
	out := maps.Clone(attributes) // the original map is shared
	out["slurm.step.id"] = step
	return out
}

// Grants implements workload.Source. The result is read-only.
func (s *Source) Grants() []workload.Grant {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.present && s.ctl.last(time.Now()).reason != s.view.reason {
		s.build() // the answer has become stale or too old
	}
	return s.view.grants
}
