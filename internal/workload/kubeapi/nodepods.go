package kubeapi

import (
	"context"
	"encoding/json"
	"errors"
	"net/url"
)

// podsOf returns the pods of a node.
func podsOf(node string) Resource {
	return Resource{Path: []string{"api", "v1", "pods"}, Kind: "Pod", Query: url.Values{"fieldSelector": {"spec.nodeName=" + node}}}
}

// followPods keeps the pods current until ctx is done.
func (c *Client) followPods(ctx context.Context) {
	var l podList
	f := follower{
		rest: c.rest, resource: podsOf(c.cfg.Node), from: "0",
		begin: func() { l = podList{} },
		item: eachPod(func(p *podObject) {
			switch {
			case p.Spec.NodeName != c.cfg.Node: // a server or proxy that ignores the selector
			case len(l.pods) >= maxPods:
				l.refused++
			default:
				l.pods = append(l.pods, c.pods.strip(p))
			}
		}),
		done: func() {
			c.pods.replace(l.pods, l.refused)
			l = podList{} // a watch takes minutes
		},
		change: c.change,
		report: func(ctx context.Context, err error) {
			if errors.Is(err, errTooLong) {
				c.pods.refuse()
			}
			c.health.set(ctx, Pods, err)
		},
	}
	f.run(ctx)
}

// podList is the pods of the pages so far.
type podList struct {
	pods    []*pod
	refused int
}

// eachPod returns a function that reads a pod of a list and passes it on.
func eachPod(each func(*podObject)) func(*values) error {
	return func(v *values) error {
		var p podObject
		if err := v.next(&p); err != nil {
			return err
		}
		if err := p.check(); err != nil {
			return err
		}
		each(&p)
		return nil
	}
}

func (c *Client) change(kind string, object json.RawMessage) (string, error) {
	p, err := parsePod(object)
	if err != nil {
		return "", err
	}
	switch {
	case kind == deleted:
		c.pods.remove(c.pods.strip(p))
	case p.Spec.NodeName == c.cfg.Node: // the selector again
		c.pods.update(c.pods.strip(p))
	}
	return p.Metadata.ResourceVersion, nil
}

// parsePod parses the pod of an event.
func parsePod(b []byte) (*podObject, error) {
	var p podObject
	if err := json.Unmarshal(b, &p); err != nil {
		return nil, unreadable("a pod", err)
	}
	return &p, p.check()
}
