package kube

import "time"

// PodSink takes the pods of the API server as JSON.
type PodSink struct {
	Cluster *Cluster
	Now     func() time.Time
}

// Begin starts a list of all pods.
func (s PodSink) Begin() (add func(object []byte), commit func()) {
	c, all, refused := s.Cluster, newPods(), 0
	add = func(object []byte) {
		p, err := parsePod(object, c.vendors, c.teamLabel)
		if err != nil || all.len() >= maxPods {
			refused++
			return
		}
		all.put(&p)
	}
	commit = func() {
		now := s.Now()
		c.mu.Lock()
		defer c.mu.Unlock()
		c.learnClaims(now)
		if c.waits != nil {
			c.waits.list()
		}
		for uid, p := range c.pods.own {
			if all.own[uid] == nil {
				c.gone(p, now)
			}
		}
		for uid, p := range all.own {
			old := c.pods.own[uid]
			p = c.resolve(p, old)
			if c.judgeEviction(old, p, false); p.accelerated() {
				c.seen(old, p, now, true)
			}
			all.own[uid] = p
		}
		if c.waits != nil {
			c.waits.listed(all.own, now)
		}
		c.pods, c.refused.pods, c.synced.pods = all, refused, true
		c.synced.claims = c.synced.claims || c.catalogNow() != nil
	}
	return add, commit
}

// Put adds or replaces a pod.
func (s PodSink) Put(object []byte) {
	c, now := s.Cluster, s.Now()
	p, err := parsePod(object, c.vendors, c.teamLabel)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.learnClaims(now)
	if err != nil || !c.pods.know(p.UID) && c.pods.len() >= maxPods {
		c.refused.pods++
		return
	}
	old := c.pods.own[p.UID]
	next := c.resolve(&p, old)
	if c.judgeEviction(old, next, false); next.accelerated() {
		c.seen(old, next, now, false)
	}
	c.pods.put(next)
}

// Delete removes a pod.
func (s PodSink) Delete(object []byte) {
	c, now := s.Cluster, s.Now()
	p, err := parsePod(object, c.vendors, c.teamLabel)
	if err != nil {
		return // it was never here
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.learnClaims(now)
	if old := c.pods.own[p.UID]; old != nil {
		next := c.resolve(&p, old)
		if c.judgeEviction(old, next, true); next.accelerated() {
			c.seen(old, next, now, false) // it may have been scheduled since
			c.gone(next, now)
		}
	}
	delete(c.pods.own, p.UID)
	delete(c.pods.rest, p.UID)
}

// NodeSink takes the nodes of the API server as JSON.
type NodeSink struct{ Cluster *Cluster }

// Begin starts a list of all nodes.
func (s NodeSink) Begin() (add func(object []byte), commit func()) {
	c, nodes, refused := s.Cluster, map[string]*Node{}, 0
	add = func(object []byte) {
		n, err := parseNode(object, c.vendors)
		switch {
		case err != nil || len(nodes) >= maxNodes:
			refused++
		default:
			nodes[n.Name] = &n
		}
	}
	commit = func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.nodes, c.refused.nodes, c.synced.nodes = nodes, refused, true
	}
	return add, commit
}

// Put adds or replaces a node.
func (s NodeSink) Put(object []byte) {
	c := s.Cluster
	n, err := parseNode(object, c.vendors)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil || c.nodes[n.Name] == nil && len(c.nodes) >= maxNodes {
		c.refused.nodes++
		return
	}
	c.nodes[n.Name] = &n
}

// Delete removes a node.
func (s NodeSink) Delete(object []byte) {
	c := s.Cluster
	n, err := parseNode(object, c.vendors)
	if err != nil {
		return // it was never here
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.nodes, n.Name)
}
