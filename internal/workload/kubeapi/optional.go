package kubeapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// Optional is a kind of object that not every cluster has: one of a newer API, or of a CustomResourceDefinition.
type Optional struct {
	Group    string
	Versions []string // that are understood, best first
	Kind     string
	_        struct{} // enforces keyed literals
}

// optionalEvery is how often a server is asked for a kind that it did not have, and twice that at most.
const optionalEvery = 5 * time.Minute

// Absent reports whether err means that the server does not have a kind of object.
func Absent(err error) bool { return errors.Is(err, errNoKind) }

// find returns the resource of a kind. The error is Absent if the server has none.
func (a *API) find(ctx context.Context, o Optional) (Resource, error) {
	absent := func() (Resource, error) { return Resource{}, fmt.Errorf("%s of %s: %w", o.Kind, o.Group, errNoKind) }
	b, err := a.rest.get(ctx, plainJSON, []string{"apis", o.Group}, nil)
	if notFound(err) {
		return absent()
	}
	if err != nil {
		return Resource{}, err
	}
	served, err := parseVersions(b)
	if err != nil {
		return Resource{}, err
	}
	for _, v := range o.Versions {
		if !served[v] {
			continue
		}
		b, err := a.rest.get(ctx, plainJSON, []string{"apis", o.Group, v}, nil)
		if notFound(err) {
			continue
		}
		if err != nil {
			return Resource{}, err
		}
		kinds, err := parseResources(b)
		if err != nil {
			return Resource{}, err
		}
		if r, ok := kinds[o.Kind]; ok {
			return Resource{Path: []string{"apis", o.Group, v, r.Resource}, Kind: o.Kind}, nil
		}
	}
	return absent()
}

func parseVersions(b []byte) (map[string]bool, error) {
	var group struct {
		Versions []struct {
			Version string `json:"version"`
		} `json:"versions"`
	}
	if err := json.Unmarshal(b, &group); err != nil {
		return nil, fmt.Errorf("cannot parse an API group: %w", err)
	}
	served := make(map[string]bool, len(group.Versions))
	for _, v := range group.Versions {
		served[v.Version] = true
	}
	return served, nil
}

// empty makes a sink have no objects.
func empty(to Sink) {
	_, commit := to.Begin()
	commit()
}

// ListOptional is List. A kind that the server does not have has no objects.
func (a *API) ListOptional(ctx context.Context, o Optional, to Sink) error {
	of, err := a.find(ctx, o)
	switch {
	case Absent(err):
		empty(to)
		return nil
	case err != nil:
		return fmt.Errorf("cannot find the %s of %s: %w", o.Kind, o.Group, shorten(err))
	}
	return a.List(ctx, of, to)
}

// FollowOptional is Follow. While the server does not have the kind, which may be installed or removed at any time, there
// are no objects, and that is no error.
func (a *API) FollowOptional(ctx context.Context, o Optional, to Sink, report func(error)) {
	var b backoff
	for pause := time.Duration(0); sleep(ctx, pause); {
		of, err := a.find(ctx, o)
		if err == nil {
			err = a.followWhileThere(ctx, of, to, report)
		}
		switch {
		case ctx.Err() != nil:
		case Absent(err):
			empty(to)
			report(nil)
			b.next(nil)
			pause = optionalEvery + rand.N(optionalEvery)
		default:
			report(fmt.Errorf("cannot find the %s of %s: %w", o.Kind, o.Group, shorten(err)))
			pause = b.next(err)
		}
	}
}

// followWhileThere follows a resource until the server no longer has it, or ctx is done.
func (a *API) followWhileThere(parent context.Context, of Resource, to Sink, report func(error)) error {
	ctx, cancel := context.WithCancel(parent)
	defer cancel()
	a.Follow(ctx, of, to, func(err error) {
		if notFound(err) {
			cancel()
			return
		}
		report(err)
	})
	return fmt.Errorf("%s: %w", of.name(), errNoKind)
}
