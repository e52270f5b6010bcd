package kubeapitest

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
)

// listener is an in-process network, so that a test can run in a synctest bubble.
type listener struct {
	conns chan net.Conn
	once  sync.Once
	done  chan struct{}
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *listener) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

// Addr implements net.Listener.
func (l *listener) Addr() net.Addr { return &net.UnixAddr{Name: "kubeapitest", Net: "pipe"} }

// Pipe serves h without a network until stop, for tests in a synctest bubble. dial is for
// an http.Transport.
func Pipe(h http.Handler) (dial func(ctx context.Context, network, address string) (net.Conn, error), stop func()) {
	l := &listener{conns: make(chan net.Conn), done: make(chan struct{})}
	srv := &http.Server{Handler: h, Protocols: new(http.Protocols)}
	srv.Protocols.SetHTTP1(true)
	srv.Protocols.SetUnencryptedHTTP2(true)
	served := make(chan struct{})
	go func() {
		defer close(served)
		srv.Serve(l) //nolint:errcheck // returns after stop
	}()
	dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
		client, server := net.Pipe()
		select {
		case l.conns <- server:
			return client, nil
		case <-l.done:
			return nil, net.ErrClosed
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return dial, func() {
		srv.Close() //nolint:errcheck // nothing is lost
		<-served
	}
}

// Serve serves on a local port until stop.
func (s *Server) Serve() (url string, stop func()) {
	srv := httptest.NewServer(s)
	return srv.URL, func() { srv.CloseClientConnections(); srv.Close() }
}

// Kubeconfig writes a kubeconfig file for url into dir and returns its path.
func Kubeconfig(dir, url string) (string, error) {
	b, err := json.Marshal(Object{
		"apiVersion": "v1", "kind": "Config", "current-context": "test",
		"clusters": []Object{{"name": "test", "cluster": Object{"server": url}}},
		"contexts": []Object{{"name": "test", "context": Object{"cluster": "test", "user": "test"}}},
		"users":    []Object{{"name": "test", "user": Object{"token": "test"}}},
	})
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, "kubeconfig")
	return file, os.WriteFile(file, b, 0o600)
}

// Pod returns a running pod. The fields in more overwrite its own, recursively.
func Pod(node, namespace, name, uid string, more ...Object) Object {
	p := Object{
		"kind": "Pod", "apiVersion": "v1",
		"metadata": Object{"namespace": namespace, "name": name, "uid": uid},
		"spec":     Object{"nodeName": node},
		"status":   Object{"phase": "Running"},
	}
	for _, m := range more {
		merge(p, m)
	}
	return p
}

// Node returns a ready node. The fields in more overwrite its own, recursively.
func Node(name string, more ...Object) Object {
	n := Object{
		"kind": "Node", "apiVersion": "v1", "metadata": Object{"name": name, "uid": "node-" + name},
		"spec": Object{}, "status": Object{"conditions": []Object{{"type": "Ready", "status": "True"}}},
	}
	for _, m := range more {
		merge(n, m)
	}
	return n
}

func merge(into, from Object) {
	for k, v := range from {
		a, aok := into[k].(Object)
		b, bok := v.(Object)
		if aok && bok {
			merge(a, b)
			continue
		}
		into[k] = v
	}
}

// Owned returns metadata with a controller.
func Owned(apiVersion, kind, name, uid string) Object {
	return Object{"ownerReferences": []Object{{"apiVersion": apiVersion, "kind": kind, "name": name, "uid": uid, "controller": true}}}
}

// Meta returns an object with a UID and, from more, an owner.
func Meta(uid string, more ...Object) Object {
	m := Object{"uid": uid}
	for _, o := range more {
		merge(m, o)
	}
	return Object{"metadata": m}
}

// Containers returns a spec and a status with containers, given as name, id, name, id ...
func Containers(pairs ...string) Object {
	var spec, status []Object
	for i := 0; i+1 < len(pairs); i += 2 {
		spec = append(spec, Object{"name": pairs[i]})
		if pairs[i+1] != "" {
			status = append(status, Object{"name": pairs[i], "containerID": "containerd://" + pairs[i+1]})
		}
	}
	return Object{"spec": Object{"containers": spec}, "status": Object{"containerStatuses": status}}
}
