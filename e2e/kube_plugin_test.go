//go:build e2e

package e2e

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	deviceplugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// visibleDevices is the variable with the IDs of a container's devices, as NVIDIA's plugin sets it. It lets
// a test know the allocation independently of the code under test.
const visibleDevices = "NVIDIA_VISIBLE_DEVICES"

// devicePlugin offers devices to the kubelet under the name of a resource.
type devicePlugin struct {
	deviceplugin.UnimplementedDevicePluginServer
	resource string
	ids      []string
}

// GetDevicePluginOptions implements deviceplugin.DevicePluginServer.
func (*devicePlugin) GetDevicePluginOptions(context.Context, *deviceplugin.Empty) (*deviceplugin.DevicePluginOptions, error) {
	return &deviceplugin.DevicePluginOptions{}, nil
}

// ListAndWatch implements deviceplugin.DevicePluginServer.
func (p *devicePlugin) ListAndWatch(_ *deviceplugin.Empty, stream deviceplugin.DevicePlugin_ListAndWatchServer) error {
	var list []*deviceplugin.Device
	for _, id := range p.ids {
		// With a NUMA node the kubelet reports every device in a separate entry, as it does for real
		// GPUs.
		list = append(list, &deviceplugin.Device{
			ID: id, Health: deviceplugin.Healthy, Topology: &deviceplugin.TopologyInfo{Nodes: []*deviceplugin.NUMANode{{ID: 0}}},
		})
	}
	if err := stream.Send(&deviceplugin.ListAndWatchResponse{Devices: list}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

// Allocate implements deviceplugin.DevicePluginServer.
func (*devicePlugin) Allocate(_ context.Context, r *deviceplugin.AllocateRequest) (*deviceplugin.AllocateResponse, error) {
	answer := &deviceplugin.AllocateResponse{}
	for _, c := range r.ContainerRequests {
		answer.ContainerResponses = append(answer.ContainerResponses, &deviceplugin.ContainerAllocateResponse{
			Envs: map[string]string{visibleDevices: strings.Join(c.DevicesIds, ",")},
		})
	}
	return answer, nil
}

// offer serves p until the test ends. A starting kubelet removes all sockets, so plugins must be offered
// again after that.
func (p *devicePlugin) offer(t *testing.T) {
	t.Helper()
	socket := strings.ReplaceAll(p.resource, "/", "_") + ".sock"
	path := filepath.Join(deviceplugin.DevicePluginPath, socket)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	deviceplugin.RegisterDevicePluginServer(server, p)
	go server.Serve(l) // ends with Stop
	t.Cleanup(server.Stop)

	conn, err := grpc.NewClient("unix://"+deviceplugin.KubeletSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	register := &deviceplugin.RegisterRequest{Version: deviceplugin.Version, Endpoint: socket, ResourceName: p.resource}
	if _, err := deviceplugin.NewRegistrationClient(conn).Register(t.Context(), register, grpc.WaitForReady(true)); err != nil {
		t.Fatalf("the kubelet does not take %s: %v", p.resource, err)
	}
}
