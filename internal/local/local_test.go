//go:build linux

package local_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/device/nvidia/nvmltest"
	"github.com/gpumeter/gpumeter/internal/local"
)

// After a GPU was lost the driver's library is initialised anew, which takes a while.
// Who reads another GPU meanwhile waits, and is not told that all of them are lost.
func TestReinitialisationHidesNobody(t *testing.T) {
	host := nvmltest.New(t, "gpus 3\n")
	reader, err := local.Sources(local.Config{NVIDIALibrary: host.Library})[0].Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	devices, err := reader.Devices(t.Context())
	if err != nil || len(devices) != 3 {
		t.Fatalf("%d devices, %v", len(devices), err)
	}
	// No Read asks for the UUID: only discovery is slow.
	host.Append(t, "gpu 1 lost\ngpu * sleep nvmlDeviceGetUUID 100")
	if _, err := devices[1].Read(t.Context(), device.Fast); !errors.Is(err, device.ErrLost) {
		t.Fatalf("a lost GPU answers %v", err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := reader.Devices(context.Background())
		done <- err
	}()
	for running := true; running; {
		select {
		case err := <-done:
			running = false
			if !errors.Is(err, device.ErrLost) {
				t.Errorf("discovery beside a lost GPU: %v", err)
			}
		default:
		}
		if _, err := devices[0].Read(t.Context(), device.Fast); err != nil {
			t.Fatalf("GPU 0 during the initialisation: %v", err)
		}
		time.Sleep(time.Millisecond) // the initialisation must get its turn
	}
	if err := reader.Close(); err != nil {
		t.Error(err)
	}
}
