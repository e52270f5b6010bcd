// Package kubelettest is a fake kubelet for tests: a real gRPC server for the pod-resources
// API on a real unix socket that answers, hangs and fails on demand. Only tests import it.
package kubelettest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// Server is a fake kubelet. Its methods are safe for concurrent use.
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
	hang     chan struct{} // closed when calls may continue; nil: calls do not hang
	delay    time.Duration
	calls    int
	patience time.Duration
}

// Start starts a kubelet without pods on the socket, which it replaces as a restarting
// kubelet does. Kill or Stop ends it.
func Start(socket string) (*Server, error) {
	s := &Server{socket: socket, server: grpc.NewServer(), done: make(chan struct{})}
	if err := s.listen(); err != nil {
		return nil, err
	}
	podresources.RegisterPodResourcesListerServer(s.server, s)
	go func() {
		defer close(s.done)
		_ = s.server.Serve(s.listener) // always returns an error
	}()
	return s, nil
}

// Set sets the pods that have resources, and the allocatable devices.
func (s *Server) Set(pods []*podresources.PodResources, offered []*podresources.ContainerDevices) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pods, s.offered = pods, offered
}

// Fail makes List fail with err, and GetAllocatableResources with allocErr; nil means
// success.
func (s *Server) Fail(err, allocErr error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listErr, s.allocErr = err, allocErr
}

// Hang makes all calls block, or lets them continue.
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

// Delay makes all calls take at least d.
func (s *Server) Delay(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.delay = d
}

// Calls returns how often List was called.
func (s *Server) Calls() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls
}

// Patience returns how long the client of the last List will wait for the answer.
func (s *Server) Patience() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.patience
}

// Kill ends the kubelet as SIGKILL does: connections break, and the socket file remains and
// refuses connections.
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
	if deadline, ok := ctx.Deadline(); ok {
		s.patience = time.Until(deadline)
	}
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
	hang, delay := s.hang, s.delay
	s.mu.Unlock()
	if delay > 0 {
		select {
		case <-time.After(delay):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
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

// Container returns a container with devices, for Pod.
func Container(name string, devices ...*podresources.ContainerDevices) *podresources.ContainerResources {
	return &podresources.ContainerResources{Name: name, Devices: devices}
}

// Devices returns devices as the kubelet lists them if the plugin reports their topology:
// the resource is repeated per device.
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
		return fmt.Errorf("cannot remove the previous socket: %w", err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: s.socket, Net: "unix"})
	if err != nil {
		return fmt.Errorf("cannot listen at the kubelet's socket: %w", err)
	}
	s.listener = l
	return nil
}
