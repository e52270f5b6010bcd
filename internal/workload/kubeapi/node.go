package kubeapi

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// Node is what is known about this node.
type Node struct {
	Zone   string
	Region string
}

// nodeEvery is how often the node is requested: its labels rarely change.
const nodeEvery = 5 * time.Minute

// Node returns what is known about this node, empty until it was read.
func (c *Client) Node() Node {
	if n := c.node.Load(); n != nil {
		return *n
	}
	return Node{}
}

func (c *Client) pollNode(ctx context.Context) {
	var b backoff
	for {
		err := c.askNode(ctx)
		c.health.set(ctx, Nodes, err)
		wait := nodeEvery
		if err != nil {
			wait = b.next(err)
		} else {
			b.next(nil)
		}
		if !sleep(ctx, wait) {
			return
		}
	}
}

func (c *Client) askNode(ctx context.Context) error {
	b, err := c.rest.get(ctx, metadataOnly, []string{"api", "v1", "nodes", c.cfg.Node}, nil)
	if err != nil {
		return err
	}
	n, err := parseNode(b)
	if err != nil {
		return err
	}
	if c.Node() != n {
		c.node.Store(&n)
		c.generation.Add(1)
	}
	return nil
}

func parseNode(b []byte) (Node, error) {
	var obj struct {
		Metadata struct {
			Labels map[string]string `json:"labels"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(b, &obj); err != nil {
		return Node{}, fmt.Errorf("cannot parse the node: %w", err)
	}
	l := obj.Metadata.Labels
	return Node{Zone: l["topology.kubernetes.io/zone"], Region: l["topology.kubernetes.io/region"]}, nil
}
