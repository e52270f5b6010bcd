package main

import (
	"bytes"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// installed returns the packages whose control files are in a folder: name, version and architecture.
func installed(dir string) ([][3]string, error) {
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var out [][3]string
	for _, f := range files {
		data, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil {
			return nil, err
		}
		var p [3]string
		for line := range strings.Lines(string(data)) {
			key, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
			switch key {
			case "Package":
				p[0] = value
			case "Version":
				p[1] = value
			case "Architecture":
				p[2] = value
			}
		}
		if p[0] == "" || p[1] == "" || p[2] == "" {
			return nil, fmt.Errorf("control file %s lacks the name, the version or the architecture", f.Name())
		}
		out = append(out, p)
	}
	return out, nil
}

// materials returns the software bill of materials of an image, CycloneDX as JSON. It has no serial number: the same image
// has the same bill.
func materials(s source, modules []component, packages [][3]string) ([]byte, error) {
	main := cdx.Component{
		BOMRef: "gpumeter", Type: cdx.ComponentTypeApplication, Name: "gpumeter", Version: s.version,
		Licenses: &cdx.Licenses{{License: &cdx.License{ID: "Apache-2.0"}}},
	}
	var components []cdx.Component
	var refs []string
	for _, m := range modules {
		var licenses cdx.Licenses
		for _, id := range m.licenses {
			licenses = append(licenses, cdx.LicenseChoice{License: &cdx.License{ID: id}})
		}
		components = append(components, cdx.Component{BOMRef: m.purl, Type: cdx.ComponentTypeLibrary, Name: m.name, Version: m.version, PackageURL: m.purl, Licenses: &licenses})
		refs = append(refs, m.purl)
	}
	for _, p := range packages {
		purl := fmt.Sprintf("pkg:deb/debian/%s@%s?arch=%s&distro=debian-13", url.PathEscape(p[0]), url.PathEscape(p[1]), p[2])
		components = append(components, cdx.Component{BOMRef: purl, Type: cdx.ComponentTypeLibrary, Name: p[0], Version: p[1], PackageURL: purl})
	}
	bom := cdx.NewBOM()
	bom.SerialNumber = ""
	bom.Metadata = &cdx.Metadata{Timestamp: s.created.Format(time.RFC3339), Component: &main}
	bom.Components = &components
	bom.Dependencies = &[]cdx.Dependency{{Ref: "gpumeter", Dependencies: &refs}}
	var b bytes.Buffer
	if err := cdx.NewBOMEncoder(&b, cdx.BOMFileFormatJSON).SetPretty(true).Encode(bom); err != nil {
		return nil, fmt.Errorf("cannot encode the bill of materials: %w", err)
	}
	return b.Bytes(), nil
}
