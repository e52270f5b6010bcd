// Package kubelettest is the pod-resources side of a kubelet for tests: a real gRPC
// server on a real unix socket that answers, hangs and fails as it is told.
package kubelettest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"sync"

	"google.golang.org/grpc"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// Server is a kubelet. Its methods may be called at any time.
type Server struct {
	podresources.UnimplementedPodResourcesListerServer

	socket   string
	listener *net.UnixListener
	server   *grpc.Server
	done     chan struct{}

	mu       sync.Mutex
	pods     []*podresources.PodResources
	offered  []*podresources.ContainerDevices
	listErr  error
	allocErr error
	hang     chan struct{} // closed when it hangs no more; nil: it does not
	calls    int
}

// Start starts a kubelet that has nothing on the socket, which is replaced as a kubelet
// that restarts does. Kill or Stop ends it.
func Start(socket string) (*Server, error) {
	s := &Server{socket: socket, server: grpc.NewServer(), done: make(chan struct{})}
	if err := s.listen(); err != nil {
		return nil, err
	}
	podresources.RegisterPodResourcesListerServer(s.server, s)
	go func() {
		defer close(s.done)
		_ = s.server.Serve(s.listener) // it ends with an error, always
	}()
	return s, nil
}

// Set sets the pods that have resources, and the devices that can be given out.
func (s *Server) Set(pods []*podresources.PodResources, offered []*podresources.ContainerDevices) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pods, s.offered = pods, offered
}

// Fail makes List fail with err, and GetAllocatableResources with allocErr; nil: not.
func (s *Server) Fail(err, allocErr error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listErr, s.allocErr = err, allocErr
}

// Hang makes all calls wait, or lets them go on.
func (s *Server) Hang(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case on && s.hang == nil:
		s.hang = make(chan struct{})
	case !on && s.hang != nil:
		close(s.hang)
		s.hang = nil
	}
}

// Calls returns how often List was called.
func (s *Server) Calls() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls
}

// Kill ends the kubelet as SIGKILL does: connections break, and the socket stays as a
// file that refuses them.
func (s *Server) Kill() {
	s.listener.SetUnlinkOnClose(false)
	s.server.Stop()
	<-s.done
}

// Stop ends the kubelet and removes its socket.
func (s *Server) Stop() {
	s.listener.SetUnlinkOnClose(true)
	s.server.Stop()
	<-s.done
}

// List implements the pod-resources service.
func (s *Server) List(ctx context.Context, _ *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	s.mu.Lock()
	s.calls++
	s.mu.Unlock()
	if err := s.wait(ctx); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return &podresources.ListPodResourcesResponse{PodResources: s.pods}, s.listErr
}

// GetAllocatableResources implements the pod-resources service.
func (s *Server) GetAllocatableResources(ctx context.Context, _ *podresources.AllocatableResourcesRequest) (*podresources.AllocatableResourcesResponse, error) {
	if err := s.wait(ctx); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return &podresources.AllocatableResourcesResponse{Devices: s.offered}, s.allocErr
}

func (s *Server) wait(ctx context.Context) error {
	s.mu.Lock()
	hang := s.hang
	s.mu.Unlock()
	if hang == nil {
		return nil
	}
	select {
	case <-hang:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Pod returns a pod for Set.
func Pod(namespace, name string, containers ...*podresources.ContainerResources) *podresources.PodResources {
	return &podresources.PodResources{Namespace: namespace, Name: name, Containers: containers}
}

// Container returns a container of a Pod that has devices.
func Container(name string, devices ...*podresources.ContainerDevices) *podresources.ContainerResources {
	return &podresources.ContainerResources{Name: name, Devices: devices}
}

// Devices returns devices as the kubelet lists them where the plugin tells their
// topology: the resource again for each.
func Devices(resource string, ids ...string) []*podresources.ContainerDevices {
	var list []*podresources.ContainerDevices
	for i, id := range ids {
		list = append(list, &podresources.ContainerDevices{
			ResourceName: resource, DeviceIds: []string{id},
			Topology: &podresources.TopologyInfo{Nodes: []*podresources.NUMANode{{ID: int64(i % 2)}}},
		})
	}
	return list
}

func (s *Server) listen() error {
	if err := os.Remove(s.socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the socket of before: %w", err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: s.socket, Net: "unix"})
	if err != nil {
		return fmt.Errorf("the kubelet's socket: %w", err)
	}
	s.listener = l
	return nil
}
