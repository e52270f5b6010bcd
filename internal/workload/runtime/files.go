package runtime

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/gpumeter/gpumeter/internal/workload"
	"github.com/gpumeter/gpumeter/internal/workload/cgroup"
)

// Where the runtimes keep their files, relative to the root and to a user's home directory.
const (
	dockerFolder   = "var/lib/docker"
	dockerSnap     = "var/snap/docker/common/var-lib-docker"
	dockerRootless = ".local/share/docker"
	podmanFolder   = "var/lib/containers/storage"
	podmanRootless = ".local/share/containers/storage"
)

const (
	maxFile = 8 << 20 // bytes; Podman keeps all containers in one file
	maxText = 256     // bytes of a name; Docker allows 63 if it is also a host name
)

// description is what a runtime's files say about a container. The files contain more,
// including secrets; only this is decoded.
type description struct {
	name, image      string
	project, service string // of Compose
}

// workload returns the workload of a container.
func (d description) workload(id string) workload.Workload {
	w := workload.Workload{ID: "container/" + id, Kind: "container", Attributes: map[string]string{"container.id": id}}
	set := func(key, value string) string {
		if value == "" || len(value) > maxText || !utf8.ValidString(value) {
			return ""
		}
		w.Attributes[key] = value
		return value
	}
	name := set("container.name", d.name)
	set("container.image.name", imageName(d.image))
	set("docker.compose.project", d.project)
	service := set("docker.compose.service", d.service)
	w.Name = cmp.Or(service, name, id[:min(len(id), 12)]) // runtimes abbreviate ids to 12 digits
	return w
}

// imageName returns an image reference without tag and digest. An image that is referenced
// by its digest only has no name.
func imageName(image string) string {
	image, _, _ = strings.Cut(image, "@")
	if strings.HasPrefix(image, "sha256:") {
		return ""
	}
	if i := strings.LastIndexByte(image, ':'); i > strings.LastIndexByte(image, '/') { // otherwise it is a port
		image = image[:i]
	}
	return image
}

// labels extracts the labels set by Compose and similar tools.
func (d *description) labels(all map[string]string) {
	d.project = cmp.Or(all["com.docker.compose.project"], all["io.podman.compose.project"])
	d.service = cmp.Or(all["com.docker.compose.service"], all["io.podman.compose.service"])
}

// files returns what the runtimes' files say about a container. The error is fs.ErrNotExist
// if no file knows it.
func (s *Source) files(c cgroup.Container) (description, error) {
	docker := []string{s.dockerDataRoot(), dockerFolder, dockerSnap}
	podman := []string{podmanFolder}
	if home := s.home(c.User); home != "" {
		docker, podman = []string{filepath.Join(home, dockerRootless)}, []string{filepath.Join(home, podmanRootless)}
	}
	var errs []error
	try := func(list []string, read func(dir, id string) (description, error)) (description, bool) {
		for _, dir := range list {
			if dir == "" {
				continue
			}
			d, err := read(filepath.Join(s.root, dir), c.ID)
			if err == nil {
				return d, true
			}
			errs = append(errs, err)
		}
		return description{}, false
	}
	if c.Runtime != "podman" {
		if d, ok := try(docker, readDocker); ok {
			return d, nil
		}
	}
	if c.Runtime != "docker" {
		if d, ok := try(podman, readPodman); ok {
			return d, nil
		}
	}
	return description{}, fmt.Errorf("container %.12s: %w", c.ID, telling(errs))
}

// telling returns the most informative error: most locations do not exist on most machines.
func telling(errs []error) error {
	for _, err := range errs {
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return fmt.Errorf("no runtime file visible to the agent describes it: %w", fs.ErrNotExist)
}

// dockerDataRoot returns the data root configured in Docker's daemon.json, if any.
func (s *Source) dockerDataRoot() string {
	b, err := readFile(filepath.Join(s.root, "etc/docker/daemon.json"))
	if err != nil {
		return ""
	}
	var daemon struct {
		DataRoot string `json:"data-root"`
	}
	_ = json.Unmarshal(b, &daemon) // with an invalid file Docker would not have started
	return daemon.DataRoot
}

// readDocker reads Docker's file for a container below its data root.
func readDocker(dir, id string) (description, error) {
	b, err := readFile(filepath.Join(dir, "containers", id, "config.v2.json"))
	if err != nil {
		return description{}, fmt.Errorf("docker: %w", err)
	}
	return parseDocker(b)
}

// parseDocker parses config.v2.json: the struct Container in Docker's daemon/container.
func parseDocker(b []byte) (description, error) {
	var file struct {
		Name   string
		Config struct {
			Image  string
			Labels map[string]string
		}
	}
	if err := json.Unmarshal(b, &file); err != nil {
		return description{}, fmt.Errorf("docker: config.v2.json: %w", err)
	}
	d := description{name: strings.TrimPrefix(file.Name, "/"), image: file.Config.Image}
	d.labels(file.Config.Labels)
	return d, nil
}

// readPodman reads what containers/storage keeps about a container below its graph root. It
// has names; labels are in Podman's database, except those that are also annotations.
func readPodman(dir, id string) (description, error) {
	// The directory is named after the storage driver: overlay-containers, vfs-containers.
	// The second file is for transient containers (run --rm).
	files, _ := filepath.Glob(filepath.Join(dir, "*-containers", "*containers.json")) // the pattern is valid
	if len(files) == 0 {
		_, err := os.ReadDir(dir)
		return description{}, fmt.Errorf("podman: %w", cmp.Or(err, fs.ErrNotExist))
	}
	var errs []error
	for _, file := range files {
		b, err := readFile(file)
		if err != nil {
			errs = append(errs, fmt.Errorf("podman: %w", err))
			continue
		}
		d, err := parsePodman(b, id)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if b, err := readFile(filepath.Join(filepath.Dir(file), id, "userdata/config.json")); err == nil {
			d.labels(parseAnnotations(b))
		}
		return d, nil
	}
	return description{}, telling(errs)
}

// parsePodman finds a container in containers.json: a list of the struct Container in
// containers/storage, whose metadata is a JSON string written by Podman.
func parsePodman(b []byte, id string) (description, error) {
	var file []struct {
		ID       string   `json:"id"`
		Names    []string `json:"names"`
		Metadata string   `json:"metadata"`
	}
	if err := json.Unmarshal(b, &file); err != nil {
		return description{}, fmt.Errorf("podman: containers.json: %w", err)
	}
	for _, c := range file {
		if c.ID != id {
			continue
		}
		var metadata struct {
			Image string `json:"image-name"`
			Name  string `json:"name"`
		}
		_ = json.Unmarshal([]byte(c.Metadata), &metadata) // another tool's container has other metadata
		d := description{name: metadata.Name, image: metadata.Image}
		if len(c.Names) > 0 {
			d.name = c.Names[0]
		}
		return d, nil
	}
	return description{}, fmt.Errorf("podman: containers.json has no %.12s: %w", id, fs.ErrNotExist)
}

// parseAnnotations returns the annotations in a config.json of the OCI runtime
// specification.
func parseAnnotations(b []byte) map[string]string {
	var file struct {
		Annotations map[string]string `json:"annotations"`
	}
	_ = json.Unmarshal(b, &file) // best effort: the name is enough
	return file.Annotations
}

// home returns the home directory of a user, or "" if there is no user or it is not in
// passwd(5). Only the container owner's home is read, because others may be on a network
// file system.
func (s *Source) home(uid string) string {
	if uid == "" {
		return ""
	}
	b, err := readFile(filepath.Join(s.root, "etc/passwd"))
	if err != nil {
		return ""
	}
	return parseHome(string(b), uid)
}

func parseHome(passwd, uid string) string {
	lines := bufio.NewScanner(strings.NewReader(passwd))
	for lines.Scan() {
		if f := strings.Split(lines.Text(), ":"); len(f) == 7 && f[2] == uid && filepath.IsAbs(f[5]) {
			return f[5]
		}
	}
	return ""
}

// readFile reads a file that a user may control: nothing in a home directory may block the
// agent, be it a pipe or an endless file.
func readFile(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(b) > maxFile {
		err = fmt.Errorf("%s has more than %d bytes", path, maxFile)
	}
	return b, err
}
