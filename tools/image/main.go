// Command image makes the container image as an OCI layout: an index of an image for each architecture. Run by
// tools/image.sh in the root of the repository.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// repository is the name of the image in its archive: a node that loads it asks no registry for localhost.
const repository = "localhost/gpumeter"

// user runs the image unless somebody asks for another. It has no name outside of the image.
const user = 65532

// maxSize is the limit of what a node has to fetch, compressed.
const maxSize = 30 << 20

// platforms maps an architecture of Go to the folder of Debian's libraries.
var platforms = map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}

func main() {
	version := flag.String("version", "dev", "version of the image")
	commit := flag.String("commit", "", "commit it is made from")
	bin := flag.String("bin", "bin", "folder with release and debian, for image")
	arches := flag.String("arch", "amd64,arm64", "architectures, separated by commas")
	flag.Parse()
	if err := run(*version, *commit, *bin, strings.Split(*arches, ",")); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(version, commit, bin string, arches []string) error {
	seconds, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
	}
	created := time.Unix(seconds, 0).UTC()
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, arch := range arches {
		binary := filepath.Join(bin, "release/gpumeter-linux-"+arch)
		in := source{arch: arch, binary: binary, debian: filepath.Join(bin, "debian", arch), license: "LICENSE", page: "web/node_modules", version: version, created: created}
		img, bom, err := makeImage(in, commit)
		if err != nil {
			return fmt.Errorf("image of %s: %w", arch, err)
		}
		size, err := compressed(img)
		if err != nil {
			return err
		}
		if size > maxSize {
			return fmt.Errorf("image of %s: %d bytes compressed, more than %d", arch, size, maxSize)
		}
		fmt.Printf("image: linux/%s: %.1f MB compressed\n", arch, float64(size)/1e6)
		if err := os.WriteFile(filepath.Join(bin, "release/sbom-linux-"+arch+".cdx.json"), bom, 0o644); err != nil {
			return err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}},
		})
	}
	path, err := layout.Write(filepath.Join(bin, "image"), empty.Index)
	if err != nil {
		return err
	}
	err = path.AppendIndex(index, layout.WithAnnotations(map[string]string{
		"org.opencontainers.image.ref.name": version, "io.containerd.image.name": repository + ":" + version,
	}))
	if err != nil {
		return err
	}
	digest, err := index.Digest()
	if err == nil {
		fmt.Printf("image: %s has %s:%s, %s\n", path, repository, version, digest)
	}
	return err
}

// makeImage returns the image of one architecture and its software bill of materials.
func makeImage(in source, commit string) (v1.Image, []byte, error) {
	base, err := in.base()
	if err != nil {
		return nil, nil, err
	}
	program, bom, err := in.program()
	if err != nil {
		return nil, nil, err
	}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	adds := []mutate.Addendum{
		{Layer: base, History: v1.History{CreatedBy: "Debian packages", Created: v1.Time{Time: in.created}}},
		{Layer: program, History: v1.History{CreatedBy: "gpumeter", Created: v1.Time{Time: in.created}}},
	}
	if img, err = mutate.Append(img, adds...); err != nil {
		return nil, nil, err
	}
	file, err := img.ConfigFile()
	if err != nil {
		return nil, nil, err
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Created = "linux", in.arch, v1.Time{Time: in.created}
	triplet := platforms[in.arch]
	file.Config = v1.Config{
		User: fmt.Sprintf("%d:%[1]d", user), Entrypoint: []string{"/usr/bin/gpumeter"}, WorkingDir: "/",
		Env: []string{
			"PATH=/usr/bin",
			// Where NVIDIA's container runtime and device plugins put the library of the driver, whatever --root is.
			"LD_LIBRARY_PATH=/usr/local/nvidia/lib64:/usr/local/nvidia/lib:/usr/lib/" + triplet + ":/usr/lib64",
		},
		Labels: map[string]string{
			"org.opencontainers.image.title": "gpumeter", "org.opencontainers.image.version": in.version, "org.opencontainers.image.revision": commit,
			"org.opencontainers.image.source": "https://github.com/gpumeter/gpumeter", "org.opencontainers.image.licenses": "Apache-2.0",
			"org.opencontainers.image.created": in.created.Format(time.RFC3339),
		},
	}
	img, err = mutate.ConfigFile(img, file)
	return img, bom, err
}

// compressed returns the bytes that a node fetches.
func compressed(img v1.Image) (int64, error) {
	manifest, err := img.Manifest()
	if err != nil {
		return 0, err
	}
	size := manifest.Config.Size
	for _, layer := range manifest.Layers {
		size += layer.Size
	}
	return size, nil
}
