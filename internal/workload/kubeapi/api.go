package kubeapi

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/url"
)

// API sends requests to an API server for those who need more than the pods of a node.
type API struct{ rest *rest }

// Open returns an API that has not sent any request yet. The error is ErrNotInCluster if
// there is no API server to query. kubeconfig is as in Config.
func Open(kubeconfig string) (*API, error) {
	s, err := newServer(kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("kubeapi: %w", err)
	}
	return &API{newREST(s, nil)}, nil
}

// Dial returns an API of the server that dial reaches, without encryption and credentials: one that plays in this process.
func Dial(dial func(ctx context.Context, network, address string) (net.Conn, error)) *API {
	return &API{newREST(server{url: &url.URL{Scheme: "http", Host: "server"}}, dial)}
}

// Close closes idle connections.
func (a *API) Close() { a.rest.close() }

// Namespace returns the namespace of this pod or, outside of a cluster, default.
func (a *API) Namespace() string { return cmp.Or(a.rest.server.namespace, "default") }

// AllPods are the pods of all namespaces.
func AllPods() Resource { return Resource{Path: []string{"api", "v1", "pods"}, Kind: "Pod"} }

// AllNodes are the nodes of the cluster.
func AllNodes() Resource { return Resource{Path: []string{"api", "v1", "nodes"}, Kind: "Node"} }

// Pod returns a pod as JSON.
func (a *API) Pod(ctx context.Context, namespace, name string) ([]byte, error) {
	b, err := a.rest.get(ctx, plainJSON, []string{"api", "v1", "namespaces", namespace, "pods", name}, nil)
	if err != nil {
		return nil, fmt.Errorf("cannot get the pod %s/%s: %w", namespace, name, shorten(err))
	}
	return b, nil
}

// Sink takes the objects of a resource as JSON, which is valid during the call only.
type Sink interface {
	// Begin starts a list: add takes its objects, commit replaces everything by them. A list that is not
	// committed has failed.
	Begin() (add func(object []byte), commit func())
	Put(object []byte)
	Delete(object []byte)
}

// List passes all objects of a resource to a sink, once.
func (a *API) List(ctx context.Context, of Resource, to Sink) error {
	if _, err := a.follower(of, to, nil).list(ctx, ""); err != nil {
		return fmt.Errorf("cannot list the %s: %w", of.name(), shorten(err))
	}
	return nil
}

// Follow keeps a sink current until ctx is done: it lists the objects of a resource, and then watches
// for changes. report is called with each result, nil for those that worked. It may be called very often with
// the same.
func (a *API) Follow(ctx context.Context, of Resource, to Sink, report func(error)) {
	a.follower(of, to, func(ctx context.Context, err error) {
		switch {
		case err == nil:
			report(nil)
		case ctx.Err() == nil: // a canceled context says nothing about the server
			report(fmt.Errorf("cannot watch the %s: %w", of.name(), shorten(err)))
		}
	}).run(ctx)
}

func (a *API) follower(of Resource, to Sink, report func(context.Context, error)) *follower {
	var add func([]byte)
	var commit func()
	var raw json.RawMessage
	return &follower{
		rest: a.rest, resource: of, report: report,
		begin: func() { add, commit = to.Begin() },
		item: func(v *values) error {
			if err := v.next(&raw); err != nil {
				return err
			}
			add(raw)
			return nil
		},
		done: func() {
			commit()
			add, commit, raw = nil, nil, nil // a watch takes minutes
		},
		change: func(kind string, object json.RawMessage) (string, error) {
			version, err := versionOf(object)
			switch {
			case err != nil:
			case kind == deleted:
				to.Delete(object)
			default:
				to.Put(object)
			}
			return version, err
		},
	}
}

// Denied reports whether the server denied a request: the permission is missing, or the credentials are wrong.
func Denied(err error) bool { return denied(err) }
