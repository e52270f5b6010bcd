package nvidia

import (
	"encoding/xml"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/gpumeter/gpumeter/internal/device"
)

var profileName = regexp.MustCompile(`^([0-9])g\.([0-9]+)gb$`)

// Catches a typing error in the table: a partition with more memory or more compute than its name says, than a larger one has, or
// than the parts of the GPU that it stands for; and a model that an earlier one hides.
func TestModelsTable(t *testing.T) {
	for i := range models {
		m := &models[i]
		name := "NVIDIA " + strings.Join(m.Words, " ")
		at := fmt.Sprintf("%s of %d MiB", name, m.Memory)
		memory := float64(m.Memory) * (1 << 20)
		if len(m.Profiles) > 0 && m.Units == 0 || m.Memory == 0 {
			t.Errorf("%s: no compute units or no memory", at)
		}
		n := 0
		device.Vendors{Facts}.Slices(name, memory, func(profile string, _, _, _ float64) {
			if n >= len(m.Profiles) || profile != m.Profiles[n].Name {
				t.Errorf("%s has the profile %s of another model", at, profile)
			}
			n++
		})
		if compute, _, ok := (device.Vendors{Facts}).Strength(name, memory); n != len(m.Profiles) || ok && compute != m.Compute {
			t.Errorf("%s: another model is found by its name", at)
		}
		for j, p := range m.Profiles {
			parts := profileName.FindStringSubmatch(p.Name)
			if parts == nil {
				t.Fatalf("%s: %s is not the name of a profile", at, p.Name)
			}
			slices, _ := strconv.Atoi(parts[1])
			gb, _ := strconv.Atoi(parts[2])
			if slices != p.Slice.Held || p.Memory > gb*1024 || float64(p.Memory) < 0.84*float64(gb)*1024 {
				t.Errorf("%s: %s has %d MiB and %d slices", at, p.Name, p.Memory, p.Slice.Held)
			}
			if part := float64(p.Units) / float64(m.Units); part > p.Slice.Part()*1.5 || part < p.Slice.Part()*0.8 {
				t.Errorf("%s: %s has %.2f of the compute units", at, p.Name, part)
			}
			if j > 0 && (p.Memory < m.Profiles[j-1].Memory || p.Units < m.Profiles[j-1].Units) {
				t.Errorf("%s: %s is smaller than %s", at, p.Name, m.Profiles[j-1].Name)
			}
		}
	}
}

// Catches partitions that are smaller than the table says: on a real H200 the driver tells what each has.
func TestModelsOfRealGPU(t *testing.T) {
	text, err := os.ReadFile("../../../../shared/fixtures/nvidia/h200-nvml-capture/nvidia-smi-mig.xml")
	if err != nil {
		t.Skip("the capture of an H200 in MIG mode is not there")
	}
	var log struct {
		GPU []struct {
			Name   string `xml:"product_name"`
			Memory struct {
				Total string `xml:"total"`
			} `xml:"fb_memory_usage"`
			MIG []struct {
				Memory struct {
					Total string `xml:"total"`
				} `xml:"fb_memory_usage"`
			} `xml:"mig_devices>mig_device"`
		} `xml:"gpu"`
	}
	decoder := xml.NewDecoder(strings.NewReader(string(text)))
	decoder.Strict = false
	if err := decoder.Decode(&log); err != nil || len(log.GPU) == 0 {
		t.Fatal(err, len(log.GPU))
	}
	mib := func(text string) float64 {
		n, err := strconv.ParseFloat(strings.TrimSuffix(text, " MiB"), 64)
		if err != nil {
			t.Fatal(err)
		}
		return n * (1 << 20)
	}
	gpu := log.GPU[0]
	seen := 0
	for _, mig := range gpu.MIG {
		found := false
		device.Vendors{Facts}.Slices(gpu.Name, mib(gpu.Memory.Total), func(_ string, memory, _, _ float64) {
			has := mib(mig.Memory.Total)
			found = found || memory <= has && memory > 0.99*has
		})
		if !found {
			t.Errorf("no profile has at most, and nearly, %s", mig.Memory.Total)
		}
		seen++
	}
	if seen < 3 {
		t.Errorf("%d partitions in the capture", seen)
	}
}
